//! The contract between firebox and its accelerators.
//!
//! A backend crate implements [`Accelerator`] for one of Burn's backends: its name, its kind, and
//! a probe that says what devices are there without touching them. firebox asks the probe first
//! and creates a device only once it has been chosen.

use burn::tensor::Device;
use burn::tensor::backend::AutodiffBackend;
use std::fmt;

/// One kind of hardware that Burn can train on.
///
/// ```
/// use burn::tensor::{Device, backend::AutodiffBackend};
/// use firebox_backend::{Accelerator, DeviceInfo, Kind, Unavailable};
///
/// /// An accelerator over any CPU backend.
/// struct Host<B>(std::marker::PhantomData<B>);
///
/// impl<B: AutodiffBackend> Accelerator for Host<B> {
///     type Backend = B;
///     const NAME: &'static str = "host";
///     const KIND: Kind = Kind::Cpu;
///
///     fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
///         Ok(vec![DeviceInfo::new(0, "CPU")])
///     }
///     fn device(_id: usize) -> Device<B> {
///         Default::default()
///     }
/// }
/// ```
pub trait Accelerator: 'static {
    /// The backend that trains on this accelerator, with autodiff.
    type Backend: AutodiffBackend;

    /// What users type, for example `flex`.
    const NAME: &'static str;

    /// What kind of hardware it drives.
    const KIND: Kind;

    /// Finds the devices, or says why there are none. Must not panic and must not create a device.
    ///
    /// # Errors
    /// [`Unavailable`], with the reason a person can act on.
    fn probe() -> Result<Vec<DeviceInfo>, Unavailable>;

    /// The device with an id that [`probe`](Self::probe) reported.
    fn device(id: usize) -> Device<Self::Backend>;
}

/// The kind of hardware behind an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The host's processor; its memory is the host's.
    Cpu,
    /// A graphics processor.
    Gpu,
}

/// A device that a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The id users give in `--devices`.
    pub id: usize,
    /// The device's own name.
    pub name: String,
}

impl DeviceInfo {
    /// A device with this id and name.
    pub fn new(id: usize, name: impl Into<String>) -> Self {
        Self {
            id,
            name: name.into(),
        }
    }
}

/// Why an accelerator cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(String);

impl Unavailable {
    /// Unavailable for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}
