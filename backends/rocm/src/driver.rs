//! What AMD's libraries say.
//!
//! The calls go through the bindings that Burn itself uses, so that the probe finds the libraries
//! that Burn will load. They are marked unsafe: C functions write through pointers.
#![expect(
    unsafe_code,
    reason = "AMD's libraries are C libraries, loaded at run time"
)]

use crate::probe::Machine;
use cubecl_hip_sys as hip;
use firebox_backend::DeviceStats;
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// This machine.
pub(crate) struct Here;

impl Machine for Here {
    fn has_libraries(&self) -> bool {
        hip::is_available()
    }

    fn gpus(&self) -> Result<Vec<String>, String> {
        let mut count = 0;
        // SAFETY: the libraries are there (`has_libraries`); the pointer is to a local integer.
        match unsafe { hip::hipGetDeviceCount(&raw mut count) } {
            hip::HIP_SUCCESS => (0..count).map(name).collect(),
            hip::hipError_t_hipErrorNoDevice => Ok(Vec::new()),
            code => Err(format!("hipGetDeviceCount gives error {code}")),
        }
    }

    fn headers(&self) -> Result<PathBuf, String> {
        let path = hip::get_hip_include_path();
        path.map(PathBuf::from).map_err(|e| e.to_string())
    }

    fn has_file(&self, path: &Path) -> bool {
        path.is_file()
    }
}

fn name(device: i32) -> Result<String, String> {
    let mut name = [0; 256];
    // SAFETY: the library writes at most as many bytes as it is told, with a zero at the end.
    match unsafe { hip::hipDeviceGetName(name.as_mut_ptr(), 256, device) } {
        hip::HIP_SUCCESS => {}
        code => {
            return Err(format!(
                "hipDeviceGetName gives error {code} for device {device}"
            ));
        }
    }
    let bytes = name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes).map_err(|e| e.to_string())?;
    Ok(name.to_string_lossy().into_owned())
}

/// The memory of the device with this id; HIP tells no utilisation.
pub(crate) fn stats(id: usize) -> Result<DeviceStats, String> {
    if !hip::is_available() {
        return Err("ROCm is missing".into());
    }
    let device = i32::try_from(id).map_err(|_| format!("there is no device {id}"))?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the libraries are there; the pointers are to local integers.
    let codes = unsafe {
        [
            hip::hipSetDevice(device),
            hip::hipMemGetInfo(&raw mut free, &raw mut total),
        ]
    };
    match codes {
        [hip::HIP_SUCCESS, hip::HIP_SUCCESS] => Ok(DeviceStats {
            memory_used: Some(total.saturating_sub(free) as u64),
            memory_free: Some(free as u64),
            utilization: None,
        }),
        [set, get] => Err(format!("HIP gives errors {set} and {get} for device {id}")),
    }
}
