//! Number formats.

use crate::config::Precision;
use crate::error::{Error, Result};

/// Checks that a run can use this number format.
pub(crate) fn check(precision: Precision) -> Result<()> {
    match precision {
        Precision::Auto | Precision::F32True => Ok(()),
        other => Err(Error::config(format!(
            "`precision` is {other}, which is not supported; use 32-true"
        ))),
    }
}
