//! The loops: plain functions over [`Fabric`](crate::Fabric).

pub(crate) mod evaluate;
pub(crate) mod fit;
mod ranks;
mod run;
mod saving;
pub(crate) mod trial;
mod validation;

pub(crate) use run::Run;
pub(crate) use saving::Own;
