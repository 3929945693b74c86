//! The number format of a run.

use super::Scaler;
use crate::accelerators::on_host;
use crate::config::{Precision, TrainerConfig};
use crate::error::{Error, Result};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType};
use firebox_autocast::{Mode, is_accelerated, is_inside, within};

/// What a run computes in.
#[derive(Debug, Clone)]
pub(crate) struct Format {
    precision: Precision,
    /// What the parameters are to be; as they are where that is `None`.
    pub(super) parameters: Option<DType>,
    mode: Mode,
    /// Whether parameters are to be known by their paths while the model computes.
    pub(crate) marks: bool,
    /// Parameters, by path, whose products stay in their own format.
    pub(super) keeps: Vec<String>,
    scaler: Option<Scaler>,
}

impl Format {
    /// What the config asks for. [`check`](Self::check) says whether the device can do it.
    pub(crate) fn new<B: Backend>(config: &TrainerConfig, device: &B::Device) -> Self {
        let precision = match config.precision {
            Precision::Auto => best::<B>(device),
            precision => precision,
        };
        let (parameters, mode) = match precision {
            Precision::Auto | Precision::F32True => (None, Mode::AsGiven),
            Precision::F64True => whole(FloatDType::F64),
            Precision::F16True => whole(FloatDType::F16),
            Precision::Bf16True => whole(FloatDType::BF16),
            Precision::F16Mixed => (None, Mode::Mixed(FloatDType::F16)),
            Precision::Bf16Mixed => (None, Mode::Mixed(FloatDType::BF16)),
        };
        let is_mixed = matches!(mode, Mode::Mixed(_));
        let keeps = config.full_precision.patterns().to_vec();
        let scales = precision == Precision::F16Mixed;
        Self {
            precision,
            parameters,
            mode,
            marks: is_mixed || config.detect_anomaly,
            keeps,
            scaler: scales.then(|| Scaler::new(config.loss_scale)),
        }
    }

    /// Checks that the device can compute in it.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn check<B: Backend>(&self, device: &B::Device) -> Result<()> {
        let precision = self.precision;
        if precision == Precision::F32True {
            return Ok(());
        }
        if !is_inside::<B>(device) {
            return Err(Error::config(format!(
                "`precision` is {precision}, which needs a backend that chooses formats, and {} does \
                 not; use 32-true, an accelerator of firebox, or `Autodiff<Autocast<_>>` of the crate \
                 firebox-autocast",
                B::name(device)
            )));
        }
        if supports::<B>(precision, device) {
            return Ok(());
        }
        let possible = Precision::ALL.into_iter().skip(1);
        let possible = possible.filter(|other| supports::<B>(*other, device));
        let possible: Vec<_> = possible.map(Precision::name).collect();
        Err(Error::config(format!(
            "`precision` is {precision}, which {} does not compute in; it can do {}",
            plain_name::<B>(device),
            possible.join(", ")
        )))
    }

    /// The name of what was chosen, where the choice was left open.
    pub(crate) fn chosen(&self, config: &TrainerConfig) -> Option<Precision> {
        (config.precision == Precision::Auto).then_some(self.precision)
    }

    /// Runs a pass of the model in it.
    pub(crate) fn within<T>(&self, body: impl FnOnce() -> T) -> T {
        match self.mode {
            Mode::AsGiven => body(),
            mode => within(mode, body),
        }
    }

    /// The scale that the loss begins with, if it has one.
    pub(crate) fn scaler(&self) -> Option<Scaler> {
        self.scaler.clone()
    }

    /// Whether the loss and the gradients are numbers of the narrow 16 bits.
    pub(crate) fn is_f16(&self) -> bool {
        self.precision == Precision::F16True
    }

    /// Whether the loss is brought into 32 bits before its backward pass.
    pub(crate) fn is_mixed(&self) -> bool {
        matches!(self.mode, Mode::Mixed(_))
    }
}

/// Runs `body` with every operation in its operands' own format.
pub(crate) fn as_given<T>(body: impl FnOnce() -> T) -> T {
    within(Mode::AsGiven, body)
}

fn whole(format: FloatDType) -> (Option<DType>, Mode) {
    (Some(format.into()), Mode::Whole(format))
}

/// The fastest that trains as well as 32 bits on the device.
fn best<B: Backend>(device: &B::Device) -> Precision {
    if on_host::<B>() || !is_inside::<B>(device) {
        return Precision::F32True;
    }
    // Formats of 16 bits gain by the units for products alone.
    if is_accelerated::<B>(device, FloatDType::BF16) {
        Precision::Bf16Mixed
    } else if is_accelerated::<B>(device, FloatDType::F16) {
        Precision::F16Mixed
    } else {
        Precision::F32True
    }
}

fn supports<B: Backend>(precision: Precision, device: &B::Device) -> bool {
    let format = match precision {
        Precision::Auto | Precision::F32True => DType::F32,
        Precision::F64True => DType::F64,
        Precision::F16Mixed | Precision::F16True => DType::F16,
        Precision::Bf16Mixed | Precision::Bf16True => DType::BF16,
    };
    // Burn joins no operations in 64 bits, and its kernels panic.
    let is_joined = format == DType::F64 && B::name(device).contains("fusion<");
    B::supports_dtype(device, format) && !is_joined
}

/// The backend's name without what is around it.
fn plain_name<B: Backend>(device: &B::Device) -> String {
    let name = B::name(device);
    let around = ["autodiff<", "fusion<", "cubecl<"];
    let inside = |name: &str, around: &&str| {
        let inside = name.strip_prefix(around)?.strip_suffix('>')?;
        Some(inside.to_owned())
    };
    around
        .iter()
        .fold(name, |name, around| inside(&name, around).unwrap_or(name))
}
