//! The `flex` accelerator: Burn's fast CPU backend.

use burn::backend::Autodiff;
use firebox_autocast::Autocast;
use firebox_backend::{Accelerator, DeviceInfo, DeviceStats, Kind, Unavailable, host};

/// Burn's fast CPU backend, with autodiff.
#[derive(Debug, Clone, Copy)]
pub struct Flex;

impl Accelerator for Flex {
    type Backend = Autodiff<Autocast<burn_flex::Flex>>;
    const NAME: &'static str = "flex";
    const KIND: Kind = Kind::Cpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        Ok(vec![host::device()])
    }

    fn device(_id: usize) -> burn_flex::FlexDevice {
        Default::default()
    }

    fn stats(_id: usize) -> Result<DeviceStats, Unavailable> {
        Ok(host::stats())
    }
}
