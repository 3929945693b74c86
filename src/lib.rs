//! firebox
pub mod error;

/// What a user's file needs.
pub mod prelude {
    pub use crate::error::{Context, Error, Result};
}

pub use error::{Context, Error, ErrorKind, Result};
