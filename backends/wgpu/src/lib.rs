//! The `wgpu` accelerator: graphics processors by Vulkan (Linux, Windows) or Metal (macOS).

mod adapter;
mod loader;

use adapter::Found;
use burn::backend::Autodiff;
use burn_wgpu::WgpuDevice;
use firebox_autocast::Autocast;
use firebox_backend::{Accelerator, DeviceInfo, DeviceStats, Kind, Unavailable, cubecl};
use std::sync::OnceLock;

// The kernel compilers store Booleans differently; each of these is Burn's choice for its compiler.
#[cfg(any(feature = "vulkan", feature = "metal"))]
type Inner = burn_wgpu::Wgpu<f32, i32, u8>;
#[cfg(not(any(feature = "vulkan", feature = "metal")))]
type Inner = burn_wgpu::Wgpu;

#[cfg(all(feature = "vulkan", target_os = "macos"))]
compile_error!("feature `vulkan` cannot be used on macOS; use `metal`");

/// Graphics processors by Vulkan or Metal, with autodiff.
///
/// Kernels are written in WGSL, with feature `vulkan` in SPIR-V, with feature `metal` in MSL.
#[derive(Debug, Clone, Copy)]
pub struct Wgpu;

impl Accelerator for Wgpu {
    type Backend = Autodiff<Autocast<Inner>>;
    const NAME: &'static str = "wgpu";
    const ALIASES: &'static [&'static str] = match cfg!(target_os = "macos") {
        true => &["webgpu", "metal"],
        false => &["webgpu", "vulkan"],
    };
    const KIND: Kind = Kind::Gpu;

    fn probe() -> Result<Vec<DeviceInfo>, Unavailable> {
        let found = found().as_ref().map_err(Clone::clone)?;
        Ok(found.iter().map(|found| found.info.clone()).collect())
    }

    fn device(id: usize) -> WgpuDevice {
        cubecl::share_streams();
        let found = found().as_ref().ok().and_then(|found| found.get(id));
        found.map_or(WgpuDevice::DefaultDevice, |found| found.device.clone())
    }

    fn stats(_id: usize) -> Result<DeviceStats, Unavailable> {
        Err(Unavailable::new(
            "wgpu does not tell how busy a device is, nor its memory",
        ))
    }
}

/// The adapters of this machine. They are looked for once: ids stay what they are.
fn found() -> &'static Result<Vec<Found>, Unavailable> {
    static FOUND: OnceLock<Result<Vec<Found>, Unavailable>> = OnceLock::new();
    FOUND.get_or_init(|| adapter::find(&Here))
}

/// This machine.
struct Here;

impl adapter::Machine for Here {
    fn has_loader(&self) -> bool {
        loader::is_there()
    }

    fn adapters(&self) -> Vec<adapter::Adapter> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: adapter::API.into(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let adapters = pollster::block_on(instance.enumerate_adapters(adapter::API.into()));
        adapters.iter().map(|a| a.get_info().into()).collect()
    }
}
