//! The contract between firebox and its accelerators.
//!
//! A backend crate implements [`Accelerator`] for one of Burn's backends: its name, its kind, and
//! a probe that says what devices are there without touching them. firebox asks the probe first
//! and creates a device only once it has been chosen.

#[cfg(feature = "cubecl")]
pub mod cubecl;
mod device;
pub mod host;

pub use device::{DeviceInfo, DeviceStats, DeviceType, Unavailable};

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::Device;
use burn::tensor::backend::AutodiffBackend;

/// The backend `B` with Burn's balanced gradient checkpointing: the results of cheap operations
/// (element by element) are not kept for the backward pass but computed again.
///
/// Burn decides this by the backend's type, so a program that is to choose when it runs has its
/// model compiled for both, and says so: `if balanced { train::<Balanced<B>>(..) } else {
/// train::<B>(..) }`. A model whose blocks are run by `StepContext::checkpoint_blocks` saves more,
/// and chooses by a setting.
///
/// ```
/// use burn::tensor::{Device, Tensor, backend::AutodiffBackend};
/// use firebox_backend::Balanced;
///
/// /// The slope of x² at 3.
/// fn slope<B: AutodiffBackend>(device: &Device<B>) -> Tensor<B::InnerBackend, 1> {
///     let x = Tensor::<Balanced<B>, 1>::from_floats([3.0], device).require_grad();
///     let gradients = (x.clone() * x.clone()).backward();
///     x.grad(&gradients).unwrap()
/// }
/// ```
pub type Balanced<B> = Autodiff<<B as AutodiffBackend>::InnerBackend, BalancedCheckpointing>;

/// One kind of hardware that Burn can train on.
///
/// ```
/// use burn::tensor::{Device, backend::AutodiffBackend};
/// use firebox_backend::{Accelerator, DeviceInfo, DeviceStats, Kind, Unavailable, host};
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
///         Ok(vec![host::device()])
///     }
///     fn device(_id: usize) -> Device<B> {
///         Default::default()
///     }
///     fn stats(_id: usize) -> Result<DeviceStats, Unavailable> {
///         Ok(host::stats())
///     }
/// }
/// ```
pub trait Accelerator: 'static {
    /// The backend that trains on this accelerator, with autodiff.
    type Backend: AutodiffBackend;

    /// What users type, for example `flex`.
    const NAME: &'static str;

    /// Other names that users may type for it, for example the programming interface it goes
    /// through (`vulkan`).
    const ALIASES: &'static [&'static str] = &[];

    /// What kind of hardware it drives.
    const KIND: Kind;

    /// Finds the devices, the best first, or says why there are none. Must not panic and must not
    /// create a device.
    ///
    /// # Errors
    /// [`Unavailable`], with the reason a person can act on.
    fn probe() -> Result<Vec<DeviceInfo>, Unavailable>;

    /// The device with an id that [`probe`](Self::probe) reported.
    fn device(id: usize) -> Device<Self::Backend>;

    /// How busy the device with this id is now. What the platform does not tell is `None`.
    ///
    /// # Errors
    /// [`Unavailable`], if the platform tells nothing at all.
    fn stats(id: usize) -> Result<DeviceStats, Unavailable>;
}

/// The kind of hardware behind an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The host's processor; its memory is the host's.
    Cpu,
    /// A graphics processor.
    Gpu,
}
