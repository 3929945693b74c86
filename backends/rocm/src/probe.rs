//! Whether kernels can be compiled and run here, and on which devices.

use firebox_backend::{DeviceInfo, DeviceType, Unavailable};
use std::path::{Path, PathBuf};

/// What a probe asks of a machine, in this order; each answer may be needed for the next question.
pub(crate) trait Machine {
    /// Whether ROCm's libraries load.
    fn has_libraries(&self) -> bool;

    /// The names of the devices that this process may see.
    fn gpus(&self) -> Result<Vec<String>, String>;

    /// Where Burn's kernel compiler looks for headers, or why it does not know.
    fn headers(&self) -> Result<PathBuf, String>;

    /// Whether there is such a file.
    fn has_file(&self, path: &Path) -> bool;
}

/// The devices, or what is missing to use them.
pub(crate) fn devices(machine: &impl Machine) -> Result<Vec<DeviceInfo>, Unavailable> {
    if !machine.has_libraries() {
        return Err(Unavailable::new(
            "ROCm is missing (its libraries, libamdhip64 and libhiprtc, do not load)",
        ));
    }
    let gpus = machine
        .gpus()
        .map_err(|e| Unavailable::new(format!("ROCm fails: {e}")))?;
    if gpus.is_empty() {
        return Err(Unavailable::new(
            "ROCm finds no device (is HIP_VISIBLE_DEVICES set?)",
        ));
    }
    let missing = |what| Unavailable::new(format!("ROCm's headers are missing: {what}"));
    let header = machine
        .headers()
        .map_err(missing)?
        .join("hip/hip_runtime.h");
    if !machine.has_file(&header) {
        return Err(missing(format!("there is no {}", header.display())));
    }
    let info = |(id, name)| DeviceInfo::new(id, name, DeviceType::OtherGpu).with_api("HIP");
    Ok(gpus.into_iter().enumerate().map(info).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    struct Fake {
        libraries: bool,
        gpus: Vec<&'static str>,
        headers: Option<&'static str>,
    }

    impl Machine for Fake {
        fn has_libraries(&self) -> bool {
            self.libraries
        }
        fn gpus(&self) -> Result<Vec<String>, String> {
            assert!(self.libraries, "a library was called though it is missing");
            Ok(self.gpus.iter().map(ToString::to_string).collect())
        }
        fn headers(&self) -> Result<PathBuf, String> {
            Ok("/opt/rocm/include".into())
        }
        fn has_file(&self, path: &Path) -> bool {
            self.headers.is_some_and(|header| path == Path::new(header))
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let probe = |libraries, gpus: &[&'static str], headers| {
            devices(&Fake {
                libraries,
                gpus: gpus.to_vec(),
                headers,
            })
        };
        let header = Some("/opt/rocm/include/hip/hip_runtime.h");
        let why =
            |found: Result<_, Unavailable>| found.map(|_: Vec<_>| ()).unwrap_err().to_string();
        assert!(why(probe(false, &["card"], header)).contains("libamdhip64"));
        assert!(why(probe(true, &[], header)).contains("no device"));
        assert!(why(probe(true, &["card"], None)).contains("/opt/rocm/include/hip"));
        assert_eq!(probe(true, &["card"], header).unwrap()[0].name, "card");
    }
}
