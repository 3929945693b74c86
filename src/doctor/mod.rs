//! What this machine offers, and whether it computes right.
//!
//! The program `firebox doctor` prints it; [`doctor`] gives it to other programs, and
//! [`verify_on_all_backends`] does the same check with your own model.

mod measure;
mod self_test;
mod verify;

pub use measure::Measurement;
pub use verify::{Difference, Verification, Verified, VerifyCase, verify_on_all_backends};

use crate::accelerators::{Compiled, FEATURES, compiled};
use crate::error::Result;
use crate::table;
use burn::tensor::DType;
use firebox_backend::{Accelerator, DeviceInfo};
use self_test::SelfTest;
use std::fmt;

/// Looks at every accelerator and runs the self-test, one training step of a small net, on each
/// that is available.
///
/// ```standalone_crate
/// let report = firebox::doctor()?;
/// println!("{report}");
/// assert!(report.is_healthy());
/// # Ok::<(), firebox::Error>(())
/// ```
///
/// ndarray computes the reference here and is not compared; see [`verify_on_all_backends`].
///
/// # Errors
/// The reference cannot be computed.
pub fn doctor() -> Result<Report> {
    doctor_with(|name| (name != firebox_ndarray::NdArray::NAME).then(|| measure_self_test(name)))
}

/// [`doctor`], with the self-test run by `measure`, for example in a process of its own.
/// It is called with each available accelerator's name; `None` leaves one out.
///
/// # Errors
/// The reference cannot be computed.
pub fn doctor_with(
    mut measure: impl FnMut(&'static str) -> Option<Result<Measurement>>,
) -> Result<Report> {
    let reference = verify::reference(&SelfTest)?;
    let checkup = |compiled: &Compiled| {
        let state = match (compiled.probe)() {
            Err(why) => State::Unavailable(why.to_string()),
            Ok(devices) => {
                let measured = measure(compiled.name);
                State::Available {
                    devices,
                    self_test: measured.map(|measured| {
                        measured.map(|measured| SelfTestResult {
                            difference: verify::difference(&measured, &reference),
                            float_types: measured.float_types,
                        })
                    }),
                }
            }
        };
        Checkup {
            accelerator: compiled.name,
            state,
        }
    };
    let mut accelerators: Vec<_> = compiled().iter().map(checkup).collect();
    for feature in FEATURES {
        if !accelerators.iter().any(|c| c.accelerator == *feature) {
            accelerators.push(Checkup {
                accelerator: feature,
                state: State::NotCompiled,
            });
        }
    }
    Ok(Report { accelerators })
}

/// The self-test's step on an accelerator, in this process.
///
/// # Errors
/// The accelerator is not compiled in, not available, or fails.
pub fn measure_self_test(accelerator: &str) -> Result<Measurement> {
    verify::measure_on(&SelfTest, accelerator, None)
}

/// What [`doctor`] found.
#[derive(Debug)]
pub struct Report {
    /// Every accelerator: those compiled in, the preferred first, then the others.
    pub accelerators: Vec<Checkup>,
}

/// What is known of an accelerator.
#[derive(Debug)]
pub struct Checkup {
    /// Its name.
    pub accelerator: &'static str,
    /// Whether it can be used.
    pub state: State,
}

/// Whether an accelerator can be used.
#[derive(Debug)]
pub enum State {
    /// The feature of its name is off.
    NotCompiled,
    /// It is compiled in, but cannot be used here, for this reason.
    Unavailable(String),
    /// It can be used.
    Available {
        /// Its devices, the best first.
        devices: Vec<DeviceInfo>,
        /// What the self-test gave on the first device, if it ran.
        self_test: Option<Result<SelfTestResult>>,
    },
}

/// What the self-test gave.
#[derive(Debug)]
pub struct SelfTestResult {
    /// The largest relative difference to the CPU in 64 bits.
    pub difference: Difference,
    /// The float formats that the device computes in.
    pub float_types: Vec<DType>,
}

impl Report {
    /// The largest relative difference that still is rounding in 32 bits.
    pub const TOLERANCE: f64 = 1e-4;

    /// Whether every self-test that ran passed: no failure, no difference above
    /// [`TOLERANCE`](Self::TOLERANCE).
    pub fn is_healthy(&self) -> bool {
        self.accelerators.iter().all(|c| match &c.state {
            State::Available {
                self_test: Some(result),
                ..
            } => result
                .as_ref()
                .is_ok_and(|r| r.difference.largest() <= Self::TOLERANCE),
            _ => true,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.accelerators.iter().flat_map(Checkup::rows).collect();
        let header = [
            "accelerator",
            "id",
            "device",
            "kind",
            "memory",
            "driver",
            "floats",
            "error",
        ];
        f.write_str(&table::render(header, &rows))?;
        writeln!(
            f,
            "\nerror: the largest relative difference of loss and gradients to the CPU in 64 bits"
        )?;
        for Checkup { accelerator, state } in &self.accelerators {
            match state {
                State::NotCompiled => {
                    writeln!(f, "{accelerator}: not compiled in; feature `{accelerator}`")?;
                }
                State::Unavailable(why) => writeln!(f, "{accelerator}: not available: {why}")?,
                State::Available {
                    self_test: Some(Err(e)),
                    ..
                } => writeln!(f, "{accelerator}: the self-test failed: {e}")?,
                State::Available {
                    self_test: Some(Ok(result)),
                    ..
                } if result.difference.largest() > Self::TOLERANCE => writeln!(
                    f,
                    "{accelerator}: computes wrong: the gradient of `{}` is furthest off",
                    result.difference.parameter
                )?,
                State::Available { .. } => {}
            }
        }
        Ok(())
    }
}

impl Checkup {
    /// A row for each device.
    fn rows(&self) -> Vec<[String; 8]> {
        let State::Available { devices, self_test } = &self.state else {
            return Vec::new();
        };
        let unknown = || "-".to_owned();
        let row = |device: &DeviceInfo| {
            let is_first = devices.first() == Some(device);
            let tested = self_test.as_ref().filter(|_| is_first);
            let (floats, error) = match tested {
                None => (unknown(), unknown()),
                Some(Err(_)) => (unknown(), "failed".into()),
                Some(Ok(result)) => (
                    names(&result.float_types),
                    table::number(result.difference.largest()),
                ),
            };
            [
                self.accelerator.to_owned(),
                device.id.to_string(),
                device.name.clone(),
                device.device_type.to_string(),
                device.memory.map_or_else(unknown, gibibytes),
                device.driver.clone().unwrap_or_else(unknown),
                floats,
                error,
            ]
        };
        devices.iter().map(row).collect()
    }
}

fn names(types: &[DType]) -> String {
    let names = types
        .iter()
        .map(|dtype| format!("{dtype:?}").to_lowercase());
    names.collect::<Vec<_>>().join(" ")
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
