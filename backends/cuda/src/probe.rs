//! Whether kernels can be compiled and run here, and on which devices.

use firebox_backend::{DeviceInfo, DeviceType, Unavailable};
use std::path::{Path, PathBuf};

/// A version, major and minor.
pub(crate) type Version = (i32, i32);

/// A device as the driver describes it.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    /// In bytes.
    pub(crate) memory: Option<u64>,
}

/// What a probe asks of a machine, in this order; each answer may be needed for the next question.
pub(crate) trait Machine {
    /// Whether the driver's library loads.
    fn has_driver(&self) -> bool;

    /// The newest CUDA that the driver supports.
    fn driver_version(&self) -> Result<Version, String>;

    /// The devices that this process may see.
    fn gpus(&self) -> Result<Vec<Gpu>, String>;

    /// The version of NVRTC, the library that compiles kernels; `None` if it does not load.
    fn compiler_version(&self) -> Option<Version>;

    /// Where Burn's kernel compiler looks for the toolkit.
    fn toolkit(&self) -> Option<PathBuf>;

    /// Whether there is such a file.
    fn has_file(&self, path: &Path) -> bool;
}

/// The devices, or what is missing to use them.
pub(crate) fn devices(machine: &impl Machine) -> Result<Vec<DeviceInfo>, Unavailable> {
    if !machine.has_driver() {
        return Err(Unavailable::new(
            "NVIDIA's driver is missing (its library, libcuda, does not load)",
        ));
    }
    let fails = |what: &str| Unavailable::new(format!("NVIDIA's driver fails: {what}"));
    let driver = machine.driver_version().map_err(|e| fails(&e))?;
    let gpus = machine.gpus().map_err(|e| fails(&e))?;
    if gpus.is_empty() {
        return Err(Unavailable::new(
            "NVIDIA's driver finds no device (is CUDA_VISIBLE_DEVICES set?)",
        ));
    }
    can_compile(machine, driver)?;
    let info = |(id, gpu): (usize, Gpu)| {
        DeviceInfo::new(id, gpu.name, DeviceType::DiscreteGpu)
            .with_memory(gpu.memory)
            .with_driver(format!("CUDA {}", text(driver)))
            .with_api("CUDA")
    };
    Ok(gpus.into_iter().enumerate().map(info).collect())
}

/// Burn compiles its kernels on the machine it runs on: that takes NVRTC and the toolkit's headers.
fn can_compile(machine: &impl Machine, driver: Version) -> Result<(), Unavailable> {
    let Some(compiler) = machine.compiler_version() else {
        return Err(Unavailable::new(
            "NVRTC, which compiles kernels, is missing (libnvrtc does not load; it is part of the \
             CUDA toolkit)",
        ));
    };
    if compiler > driver {
        return Err(Unavailable::new(format!(
            "the driver is too old: it runs kernels of CUDA {}, but NVRTC compiles for {}; update \
             the driver or install that toolkit",
            text(driver),
            text(compiler)
        )));
    }
    let Some(toolkit) = machine.toolkit() else {
        return Err(Unavailable::new(
            "the CUDA toolkit's headers are missing: no CUDA_PATH is set, and there is no \
             /usr/local/cuda, /opt/cuda or /usr/bin/nvcc",
        ));
    };
    let header = toolkit.join("include").join("cuda_runtime.h");
    match machine.has_file(&header) {
        true => Ok(()),
        false => Err(Unavailable::new(format!(
            "the CUDA toolkit's headers are missing: there is no {}; set CUDA_PATH to the toolkit",
            header.display()
        ))),
    }
}

fn text((major, minor): Version) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A machine; `None` is what it lacks.
    #[derive(Clone)]
    struct Fake {
        driver: Option<Version>,
        gpus: Result<usize, &'static str>,
        compiler: Option<Version>,
        toolkit: Option<&'static str>,
        header: Option<&'static str>,
    }

    impl Fake {
        fn whole() -> Self {
            Self {
                driver: Some((12, 8)),
                gpus: Ok(2),
                compiler: Some((12, 6)),
                toolkit: Some("/usr/local/cuda"),
                header: Some("/usr/local/cuda/include/cuda_runtime.h"),
            }
        }
        fn why(&self) -> String {
            devices(self).unwrap_err().to_string()
        }
    }

    impl Machine for Fake {
        fn has_driver(&self) -> bool {
            self.driver.is_some()
        }
        fn driver_version(&self) -> Result<Version, String> {
            Ok(self.driver.unwrap())
        }
        fn gpus(&self) -> Result<Vec<Gpu>, String> {
            assert!(
                self.has_driver(),
                "the driver was called though it is missing"
            );
            let name = |n| Gpu {
                name: format!("card {n}"),
                memory: Some(1 << 30),
            };
            Ok((0..self.gpus?).map(name).collect())
        }
        fn compiler_version(&self) -> Option<Version> {
            self.compiler
        }
        fn toolkit(&self) -> Option<PathBuf> {
            self.toolkit.map(PathBuf::from)
        }
        fn has_file(&self, path: &Path) -> bool {
            self.header.is_some_and(|header| path == Path::new(header))
        }
    }

    #[test]
    fn a_whole_machine_has_its_devices_in_order() {
        let found = devices(&Fake::whole()).unwrap();
        let names: Vec<_> = found.iter().map(|d| (d.id, d.name.as_str())).collect();
        assert_eq!(names, [(0, "card 0"), (1, "card 1")]);
        assert_eq!(found[0].memory, Some(1 << 30));
        assert_eq!(found[0].driver.as_deref(), Some("CUDA 12.8"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let whole = Fake::whole;
        let no_driver = Fake {
            driver: None,
            ..whole()
        };
        assert!(no_driver.why().contains("libcuda"), "{}", no_driver.why());

        let no_gpu = Fake {
            gpus: Ok(0),
            ..whole()
        };
        assert!(no_gpu.why().contains("no device"), "{}", no_gpu.why());

        let failing = Fake {
            gpus: Err("unknown error"),
            ..whole()
        };
        assert!(failing.why().contains("unknown error"), "{}", failing.why());

        let no_compiler = Fake {
            compiler: None,
            ..whole()
        };
        assert!(
            no_compiler.why().contains("libnvrtc"),
            "{}",
            no_compiler.why()
        );

        let old = Fake {
            driver: Some((12, 2)),
            ..whole()
        };
        assert!(old.why().contains("too old"), "{}", old.why());
        assert!(old.why().contains("12.2") && old.why().contains("12.6"));

        let no_toolkit = Fake {
            toolkit: None,
            ..whole()
        };
        assert!(
            no_toolkit.why().contains("/usr/local/cuda"),
            "{}",
            no_toolkit.why()
        );

        let no_headers = Fake {
            header: None,
            ..whole()
        };
        let header = "/usr/local/cuda/include/cuda_runtime.h";
        assert!(no_headers.why().contains(header), "{}", no_headers.why());
    }
}
