//! The loops: plain functions over [`Fabric`](crate::Fabric).

mod averaging;
pub(crate) mod evaluate;
pub(crate) mod fit;
mod orders;
mod ranks;
mod run;
mod saving;
mod step;
pub(crate) mod trial;
mod validation;

pub(crate) use run::Run;
pub(crate) use saving::Own;
