//! Choosing hardware in a real process, on machines that lack something.

use crate::support::example;
use firebox::doctor::Report;
use firebox::prelude::*;
use std::path::Path;
use std::process::{Command, Output};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the smallest example on this accelerator, with these variables; nothing may panic.
fn train_on(accelerator: &str, variables: &[(&str, &Path)]) -> Output {
    let runs = tempfile::tempdir().unwrap();
    let mut command = Command::new(example("linear_regression"));
    command.args(["--accelerator", accelerator, "--max-epochs", "1"]);
    command.arg("--run-dir").arg(runs.path());
    // Mesa's driver complains on stderr where there is no such folder.
    command.env("XDG_RUNTIME_DIR", runs.path());
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let stderr = text(&output.stderr);
    assert!(!stderr.contains("panicked at"), "{stderr}");
    output
}

#[test]
fn the_doctor_finds_every_backend_right() {
    let runtime = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_firebox"))
        .arg("doctor")
        .env("XDG_RUNTIME_DIR", runtime.path())
        .output()
        .unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        (output.status.code(), stderr.as_str()),
        (Some(0), ""),
        "{stdout}"
    );
    let rows = stdout.lines().skip(2).take_while(|line| !line.is_empty());
    let error = |row: &str| row.split_whitespace().last().unwrap().parse::<f64>();
    let errors: Vec<f64> = rows.filter_map(|row| error(row).ok()).collect();
    assert!(errors.len() >= 2, "{stdout}");
    // Rounding in 32 bits, of something that was computed.
    let in_range = |error: &f64| (1e-9..Report::TOLERANCE).contains(error);
    assert!(errors.iter().all(in_range), "{stdout}");
    for missing in ["cuda", "rocm", "wgpu", "flex", "ndarray"] {
        assert!(stdout.contains(missing), "{stdout}");
    }
}

/// Asks how busy its devices are.
struct AskStats(TrainerConfig);

impl Recipe for AskStats {
    fn config(&self) -> &TrainerConfig {
        &self.0
    }
    fn run<B: AutodiffBackend>(self, cx: Launch<B>) -> Result<()> {
        let stats = cx.device_stats()?;
        let used = stats[0].memory_used.unwrap();
        assert!((stats.len(), used > 1 << 20) == (1, true), "{stats:?}");
        Ok(())
    }
}

#[test]
fn a_recipe_can_ask_how_busy_its_devices_are() {
    let config = TrainerConfig::new().with_accelerator("cpu");
    firebox::try_launch(AskStats(config)).unwrap();
}

#[test]
fn auto_trains_on_the_cpu_where_there_is_no_gpu() {
    let nowhere = Path::new("/nonexistent");
    let hidden = [
        ("CUDA_VISIBLE_DEVICES", Path::new("")),
        ("HIP_VISIBLE_DEVICES", Path::new("")),
        ("VK_DRIVER_FILES", nowhere),
        ("VK_ICD_FILENAMES", nowhere),
    ];
    let output = train_on("auto", &hidden);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let first = stderr.lines().next().unwrap();
    assert!(first.starts_with("accelerator: flex (CPU)"), "{first}");
    for (name, is_compiled) in [
        ("cuda", cfg!(feature = "cuda")),
        ("rocm", cfg!(feature = "rocm")),
        ("wgpu", cfg!(feature = "wgpu")),
    ] {
        assert_eq!(
            first.contains(&format!("; not {name}: ")),
            is_compiled,
            "{first}"
        );
    }
}

#[cfg(all(feature = "wgpu", target_os = "linux"))]
#[test]
fn vulkan_without_a_driver() {
    let nowhere = Path::new("/nonexistent");
    let hidden = [("VK_DRIVER_FILES", nowhere), ("VK_ICD_FILENAMES", nowhere)];
    for name in ["wgpu", "vulkan", "webgpu"] {
        let output = train_on(name, &hidden);
        let reason = match text(&output.stderr).contains("libvulkan.so.1") {
            true => "the Vulkan loader is missing",
            false => "no adapter speaks Vulkan",
        };
        let start = format!("error: accelerator `{name}` is not available: wgpu: ");
        let stderr = text(&output.stderr);
        let is_named = name == "wgpu" || stderr.starts_with(&start);
        assert!(is_named && stderr.contains(reason), "{stderr}");
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1));
    }
}

/// NVIDIA's libraries, faked: real libraries with the functions that the probe calls.
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod faked_libraries {
    use super::*;
    use tempfile::TempDir;

    const DRIVER: &str = r#"
        #include <string.h>
        int cuInit(unsigned flags) { return DEVICES == 0 ? 100 : 0; }
        int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
        int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
        int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
        int cuDeviceGetName(char *name, int size, int device) { strcpy(name, "fake card"); return 0; }
        int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 30; return 0; }
    "#;

    const COMPILER: &str =
        "int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = MINOR; return 0; }";

    /// The run ends with 1 and one line that contains `reason`.
    #[track_caller]
    fn assert_unavailable(output: &Output, reason: &str) {
        let stderr = text(&output.stderr);
        let start = "error: accelerator `cuda` is not available: ";
        assert!(stderr.starts_with(start), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1));
    }

    /// Builds a library into the folder; whether that worked.
    fn build(folder: &TempDir, name: &str, source: &str, define: &str) -> bool {
        let file = folder.path().join(format!("{name}.c"));
        std::fs::write(&file, source).unwrap();
        let library = folder.path().join(format!("lib{name}.so"));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", define, "-o"])
            .arg(library)
            .arg(file);
        compiler.status().is_ok_and(|status| status.success())
    }

    /// What a run on CUDA says with such libraries; none if there is no C compiler to make them.
    fn run(devices: u8, nvrtc_minor: Option<u8>) -> Option<Output> {
        let folder = tempfile::tempdir().unwrap();
        let mut built = build(&folder, "cuda", DRIVER, &format!("-DDEVICES={devices}"));
        if let Some(minor) = nvrtc_minor {
            built &= build(&folder, "nvrtc", COMPILER, &format!("-DMINOR={minor}"));
        }
        if !built {
            eprintln!("skipped: no C compiler");
            return None;
        }
        let variables = [
            ("LD_LIBRARY_PATH", folder.path()),
            ("CUDA_PATH", Path::new("/nonexistent")),
        ];
        Some(train_on("cuda", &variables))
    }

    #[test]
    fn what_is_missing_is_said() {
        let cases = [
            (0, None, "finds no device"),
            (1, None, "NVRTC, which compiles kernels, is missing"),
            (
                1,
                Some(8),
                "runs kernels of CUDA 12.4, but NVRTC compiles for 12.8",
            ),
            (
                1,
                Some(4),
                "there is no /nonexistent/include/cuda_runtime.h",
            ),
        ];
        for (devices, nvrtc_minor, reason) in cases {
            if let Some(output) = run(devices, nvrtc_minor) {
                assert_unavailable(&output, reason);
            }
        }
    }

    #[test]
    fn no_driver() {
        if Command::new("nvidia-smi").output().is_ok() {
            return eprintln!("skipped: this machine has NVIDIA's driver");
        }
        assert_unavailable(&train_on("cuda", &[]), "libcuda, does not load");
    }
}
