//! The loops: plain functions over [`Fabric`](crate::Fabric).

pub(crate) mod evaluate;
pub(crate) mod fit;
mod run;
mod validation;

pub(crate) use run::Run;
