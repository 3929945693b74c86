//! The `cuda` accelerator: NVIDIA graphics processors.

mod driver;
mod probe;

use burn::backend::Autodiff;
use burn_cuda::CudaDevice;
use firebox_autocast::Autocast;
use firebox_backend::{Accelerator, DeviceInfo, DeviceStats, Kind, Unavailable, cubecl};
use nvml_wrapper::Nvml;

/// NVIDIA graphics processors, with autodiff.
///
/// Which of them a process sees, and in which order, `CUDA_VISIBLE_DEVICES` says.
#[derive(Debug, Clone, Copy)]
pub struct Cuda;

impl Accelerator for Cuda {
    type Backend = Autodiff<Autocast<burn_cuda::Cuda>>;
    const NAME: &'static str = "cuda";
    const KIND: Kind = Kind::Gpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        probe::devices(&driver::Here)
    }

    fn device(id: usize) -> CudaDevice {
        cubecl::share_streams();
        CudaDevice::new(id)
    }

    fn stats(id: usize) -> Result<DeviceStats, Unavailable> {
        let unavailable = |e| Unavailable::new(format!("NVML does not tell: {e}"));
        // NVML counts all devices of the machine, CUDA those that are visible: the bus is common.
        let bus = driver::bus_of(id).map_err(Unavailable::new)?;
        let nvml = Nvml::init().map_err(unavailable)?;
        let device = nvml.device_by_pci_bus_id(bus).map_err(unavailable)?;
        let memory = device.memory_info().ok();
        let utilization = device.utilization_rates().ok();
        Ok(DeviceStats {
            memory_used: memory.as_ref().map(|m| m.used),
            memory_free: memory.as_ref().map(|m| m.free),
            utilization: utilization.map(|u| f64::from(u.gpu) / 100.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_says_so() {
        match Cuda::probe() {
            Err(why) => assert!(!why.to_string().is_empty()),
            Ok(devices) => assert!(!devices.is_empty()),
        }
        assert!(Cuda::stats(10_000).is_err());
    }
}
