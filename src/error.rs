//! One error type for the whole toolkit.

use std::fmt;

/// A result whose error is firebox's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the place it happened and its cause.
///
/// The message says what happened, with the value, and what would work. [`Error::context`] adds
/// where; the outermost place is printed first:
///
/// ```
/// use firebox::{Error, ErrorKind};
///
/// let error = Error::config("`max_epochs` is -3; use a whole number from 0")
///     .context("run.toml");
/// assert_eq!(error.to_string(), "run.toml: `max_epochs` is -3; use a whole number from 0");
/// assert_eq!(error.kind(), ErrorKind::Config);
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    /// Innermost place first.
    context: Vec<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// What failed because of it.
    later: Vec<Error>,
}

/// The kind of an [`Error`]; what a program can react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, or a combination of settings, that cannot work.
    Config,
    /// The accelerator or device asked for is not there.
    Unavailable,
    /// A data set, a loader or a batch failed.
    Data,
    /// The file system refused something.
    Io,
    /// A file is not what was written: cut short, changed, or of another kind.
    Corrupt,
    /// A loss, gradient or parameter is NaN or infinite.
    NonFinite,
    /// The backend reported an error while it computed.
    Backend,
    /// The user's own code failed: a step, a hook, a callback.
    User,
    /// A signal asked the process to end.
    Interrupted,
    /// Another rank failed, and this one with it.
    Aborted,
}

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: None,
            later: Vec::new(),
        }))
    }

    /// An [`ErrorKind::Config`] error.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// An [`ErrorKind::Data`] error.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }

    /// An [`ErrorKind::Io`] error: what was being done, to which path, and why it failed.
    pub fn io(doing: &str, path: &std::path::Path, source: std::io::Error) -> Self {
        Self::new(
            ErrorKind::Io,
            format!("cannot {doing} `{}`", path.display()),
        )
        .with_source(source)
    }

    /// An [`ErrorKind::User`] error, from a step, a hook or a callback.
    pub fn user(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::User, message)
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Adds where it happened, outside of the places added before.
    #[must_use]
    pub fn context(mut self, place: impl fmt::Display) -> Self {
        self.0.context.push(place.to_string());
        self
    }

    /// The same without where it was noticed: what another rank reports has its own place.
    pub(crate) fn without_context(mut self) -> Self {
        self.0.context.clear();
        self
    }

    /// Adds what failed afterwards, while this error was being dealt with.
    pub(crate) fn followed_by(mut self, later: impl IntoIterator<Item = Error>) -> Self {
        self.0.later.extend(later);
        self
    }

    /// What failed afterwards.
    pub(crate) fn later(&self) -> &[Error] {
        &self.0.later
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The process's exit code for this error: 2 for a wrong setting, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            ErrorKind::Config => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in self.0.context.iter().rev() {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.0.message)?;
        // The whole chain on one line: what people see is what they can search for.
        let mut source = self
            .0
            .source
            .as_deref()
            .map(|s| s as &dyn std::error::Error);
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        for later in &self.0.later {
            write!(f, " (and then: {later})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

// `source` stays empty on purpose: `Display` prints the whole chain already.
impl std::error::Error for Error {}

/// `.context("place")` on any result, so that `?` works in steps, data modules and callbacks.
///
/// ```
/// use firebox::prelude::*;
///
/// fn labels(path: &str) -> Result<Vec<u8>> {
///     std::fs::read(path).context(format!("reading labels from {path}"))
/// }
/// let error = labels("/nowhere").unwrap_err();
/// assert!(error.to_string().starts_with("reading labels from /nowhere: "));
/// ```
pub trait Context<T> {
    /// Turns the error into a firebox [`Error`] and adds where it happened.
    fn context(self, place: impl fmt::Display) -> Result<T>;
}

impl<T, E> Context<T> for std::result::Result<T, E>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn context(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|e| {
            let boxed: Box<dyn std::error::Error + Send + Sync> = e.into();
            match boxed.downcast::<Error>() {
                Ok(ours) => ours.context(place),
                Err(other) => Error::user(other.to_string()).context(place),
            }
        })
    }
}
