//! The `ndarray` accelerator: Burn's reference CPU backend.

use burn::backend::Autodiff;
use firebox_backend::{Accelerator, DeviceInfo, Kind, Unavailable};

/// Burn's reference CPU backend, with autodiff.
#[derive(Debug, Clone, Copy)]
pub struct NdArray;

impl Accelerator for NdArray {
    type Backend = Autodiff<burn_ndarray::NdArray>;
    const NAME: &'static str = "ndarray";
    const KIND: Kind = Kind::Cpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        Ok(vec![DeviceInfo::new(0, "CPU")])
    }

    fn device(_id: usize) -> burn_ndarray::NdArrayDevice {
        Default::default()
    }
}
