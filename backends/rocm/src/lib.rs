//! The `rocm` accelerator: AMD graphics processors on Linux.

mod driver;
mod probe;

use burn::backend::Autodiff;
use burn_rocm::RocmDevice;
use firebox_autocast::Autocast;
use firebox_backend::{Accelerator, DeviceInfo, DeviceStats, Kind, Unavailable, cubecl};

/// AMD graphics processors, with autodiff.
///
/// Which of them a process sees, and in which order, `HIP_VISIBLE_DEVICES` says.
#[derive(Debug, Clone, Copy)]
pub struct Rocm;

impl Accelerator for Rocm {
    type Backend = Autodiff<Autocast<burn_rocm::Rocm>>;
    const NAME: &'static str = "rocm";
    const ALIASES: &'static [&'static str] = &["hip"];
    const KIND: Kind = Kind::Gpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        probe::devices(&driver::Here)
    }

    fn device(id: usize) -> RocmDevice {
        cubecl::share_streams();
        RocmDevice::new(id)
    }

    fn stats(id: usize) -> Result<DeviceStats, Unavailable> {
        driver::stats(id).map_err(Unavailable::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_rocm_says_so() {
        match Rocm::probe() {
            Err(why) => assert!(why.to_string().contains("ROCm"), "{why}"),
            Ok(devices) => assert!(!devices.is_empty()),
        }
        assert!(Rocm::stats(10_000).is_err());
    }
}
