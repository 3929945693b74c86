//! The `ndarray` accelerator: Burn's reference CPU backend.

use burn::backend::Autodiff;
use firebox_autocast::Autocast;
use firebox_backend::{Accelerator, DeviceInfo, DeviceStats, Kind, Unavailable, host};

/// Burn's reference CPU backend, with autodiff.
#[derive(Debug, Clone, Copy)]
pub struct NdArray;

/// The same in 64 bits, to compare others with.
pub type Reference = Autodiff<burn_ndarray::NdArray<f64>>;

impl Accelerator for NdArray {
    type Backend = Autodiff<Autocast<burn_ndarray::NdArray>>;
    const NAME: &'static str = "ndarray";
    const KIND: Kind = Kind::Cpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        Ok(vec![host::device()])
    }

    fn device(_id: usize) -> burn_ndarray::NdArrayDevice {
        Default::default()
    }

    fn stats(_id: usize) -> Result<DeviceStats, Unavailable> {
        Ok(host::stats())
    }
}
