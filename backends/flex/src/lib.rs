//! The `flex` accelerator: Burn's fast CPU backend.

use burn::backend::Autodiff;
use firebox_backend::{Accelerator, DeviceInfo, Kind, Unavailable};

/// Burn's fast CPU backend, with autodiff.
#[derive(Debug, Clone, Copy)]
pub struct Flex;

impl Accelerator for Flex {
    type Backend = Autodiff<burn_flex::Flex>;
    const NAME: &'static str = "flex";
    const KIND: Kind = Kind::Cpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        Ok(vec![DeviceInfo::new(0, "CPU")])
    }

    fn device(_id: usize) -> burn_flex::FlexDevice {
        Default::default()
    }
}
