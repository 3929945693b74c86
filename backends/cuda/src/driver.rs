//! What NVIDIA's libraries say. Each function here touches no device and allocates nothing on one.
//!
//! The calls go through the bindings that Burn itself uses, so that the probe finds the libraries
//! that Burn will load. Some of those bindings are marked unsafe: loading a library runs its
//! initialisers, and C functions write through pointers.
#![expect(
    unsafe_code,
    reason = "NVIDIA's libraries are C libraries, loaded at run time"
)]

use crate::probe::{Gpu, Machine, Version};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::{driver, nvrtc};
use std::path::{Path, PathBuf};

/// This machine.
pub(crate) struct Here;

impl Machine for Here {
    fn has_driver(&self) -> bool {
        // SAFETY: Burn loads the same library, by the same names, when it first uses a device.
        unsafe { driver::sys::is_culib_present() }
    }

    fn driver_version(&self) -> Result<Version, String> {
        let mut version = 0;
        // SAFETY: the library is there (`has_driver`), and the pointer is to a local integer.
        let status = unsafe { driver::sys::cuDriverGetVersion(&raw mut version) };
        status.result().map_err(text)?;
        // The driver counts as in 12040 for 12.4.
        Ok((version / 1000, version % 1000 / 10))
    }

    fn gpus(&self) -> Result<Vec<Gpu>, String> {
        match result::init() {
            Err(DriverError(driver::sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
            initialised => initialised.map_err(text)?,
        }
        let count = result::device::get_count().map_err(text)?;
        (0..count).map(gpu).collect()
    }

    fn compiler_version(&self) -> Option<Version> {
        // SAFETY: Burn loads the same library, by the same names, when it compiles a kernel.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            return None;
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there, and the pointers are to local integers.
        let status = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        status.result().ok().map(|()| (major, minor))
    }

    fn toolkit(&self) -> Option<PathBuf> {
        cubecl_cuda::install::cuda_path()
    }

    fn has_file(&self, path: &Path) -> bool {
        path.is_file()
    }
}

fn gpu(ordinal: i32) -> Result<Gpu, String> {
    let device = result::device::get(ordinal).map_err(text)?;
    let name = result::device::get_name(device).map_err(text)?;
    // SAFETY: `device` comes from the driver.
    let memory = unsafe { result::device::total_mem(device) };
    Ok(Gpu {
        name,
        memory: memory.ok().map(|bytes| bytes as u64),
    })
}

/// Where the device with this id sits on the PCI bus, as `domain:bus:device.0`.
pub(crate) fn bus_of(id: usize) -> Result<String, String> {
    if !Here.has_driver() {
        return Err("NVIDIA's driver is missing".into());
    }
    result::init().map_err(text)?;
    let ordinal = i32::try_from(id).map_err(|_| format!("there is no device {id}"))?;
    let device = result::device::get(ordinal).map_err(text)?;
    let attribute = |attribute| {
        // SAFETY: `device` comes from the driver.
        unsafe { result::device::get_attribute(device, attribute) }.map_err(text)
    };
    let domain = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let slot = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    Ok(format!("{domain:08x}:{bus:02x}:{slot:02x}.0"))
}

fn text(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("{:?}", error.0),
    }
}
