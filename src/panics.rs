//! Panics in a user's code become errors.
//!
//! Burn reports a wrong shape by panicking, and so may any step or data set. What was running, the
//! panic's message and its place become an [`Error`], and nothing is printed twice.

use crate::error::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// How many `catch` calls this thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Where the last caught panic happened.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `f`; a panic in it is an error of the given kind.
pub(crate) fn catch<T>(kind: ErrorKind, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_as(f, |panic| Error::new(kind, format!("panicked: {panic}")))
}

/// Runs `f`; a panic in it becomes what `error` makes of its message and place.
pub(crate) fn catch_as<T>(
    f: impl FnOnce() -> Result<T>,
    error: impl FnOnce(String) -> Error,
) -> Result<T> {
    install_hook();
    DEPTH.set(DEPTH.get() + 1);
    let outcome = panic::catch_unwind(AssertUnwindSafe(f));
    DEPTH.set(DEPTH.get() - 1);
    outcome.unwrap_or_else(|payload| {
        let place = PLACE.take().map(|place| format!(" (at {place})"));
        let payload = match payload.downcast::<Error>() {
            Ok(error) => return Err(*error),
            Err(payload) => payload,
        };
        let message = message(&*payload);
        Err(error(format!("{message}{}", place.unwrap_or_default())))
    })
}

/// Leaves code that cannot return errors, such as an operation of a model, with one: `catch` gives
/// it back as it is. The panic hook is left out: nothing is wrong with the program.
pub(crate) fn leave_with(error: Error) -> ! {
    panic::resume_unwind(Box::new(error))
}

/// Keeps the default hook from printing what `catch` reports; every other panic is left to the
/// hook that was there before.
fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                return previous(info);
            }
            let place = info.location().map(ToString::to_string);
            PLACE.replace(place);
        }));
    });
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message_and_place() {
        let error = catch::<()>(ErrorKind::User, || panic!("shape {}", 3)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("panicked: shape 3 (at src/panics.rs:"),
            "{text}"
        );
        assert_eq!(error.kind(), ErrorKind::User);
    }

    #[test]
    fn an_error_from_code_without_results_stays_what_it_is() {
        let error = Error::data("none").context("row 3");
        let caught = catch::<()>(ErrorKind::User, || leave_with(error)).unwrap_err();
        assert_eq!(caught.to_string(), "row 3: none");
        assert_eq!(caught.kind(), ErrorKind::Data);
    }

    #[test]
    fn values_and_errors_pass_through() {
        assert_eq!(catch(ErrorKind::User, || Ok(7)).unwrap(), 7);
        let error = catch::<()>(ErrorKind::User, || Err(Error::data("none"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
    }
}
