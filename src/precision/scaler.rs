//! The scale of the loss.

use crate::config::LossScale;
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// What the loss is multiplied with so that gradients fit into 16 bits, by the rule and with the
/// numbers of PyTorch's `GradScaler` (`torch.amp`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scaler {
    scale: f32,
    is_static: bool,
    /// Steps since the scale last changed.
    steps: u32,
    /// Skipped steps in a row, at the smallest scale.
    skipped: u32,
}

const GROWTH: f32 = 2.0;
const BACKOFF: f32 = 0.5;
const GROWTH_INTERVAL: u32 = 2000;

/// As DeepSpeed's `min_loss_scale`; PyTorch's has no end.
const SMALLEST: f32 = 1.0;

/// Skipped steps in a row at the smallest scale that end the run.
const MOST_SKIPPED: u32 = 10;

impl Scaler {
    pub(crate) fn new(scale: LossScale) -> Self {
        let (scale, is_static) = match scale {
            LossScale::Dynamic { start } => (start, false),
            LossScale::Static(scale) => (scale, true),
        };
        Self {
            scale,
            is_static,
            steps: 0,
            skipped: 0,
        }
    }

    pub(crate) fn scale(&self) -> f64 {
        self.scale.into()
    }

    /// Goes on from what a checkpoint holds, unless the run has a scale that stays.
    ///
    /// # Errors
    /// A scale that no run has.
    pub(crate) fn resume(&mut self, saved: &Self) -> Result<()> {
        if !(saved.scale.is_finite() && saved.scale > 0.0) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("the loss scale is {}", saved.scale),
            ));
        }
        if !self.is_static && !saved.is_static {
            self.clone_from(saved);
        }
        Ok(())
    }

    /// After a step whose gradients were finite.
    pub(crate) fn on_step(&mut self) {
        self.skipped = 0;
        if self.is_static {
            return;
        }
        self.steps = self.steps.saturating_add(1);
        if self.steps >= GROWTH_INTERVAL {
            let grown = self.scale * GROWTH;
            if grown.is_finite() {
                self.scale = grown;
            }
            self.steps = 0;
        }
    }

    /// After a step that was skipped because a gradient was not finite.
    ///
    /// # Errors
    /// It is not the scale that makes them so.
    pub(crate) fn on_skip(&mut self) -> Result<()> {
        self.steps = 0;
        if !self.is_static && self.scale > SMALLEST {
            self.scale = (self.scale * BACKOFF).max(SMALLEST);
            return Ok(());
        }
        self.skipped = self.skipped.saturating_add(1);
        if self.skipped < MOST_SKIPPED {
            return Ok(());
        }
        let (scale, which) = match self.is_static {
            true => (self.scale, "that `loss_scale` sets"),
            false => (self.scale, "the smallest"),
        };
        Err(Error::new(
            ErrorKind::NonFinite,
            format!(
                "{MOST_SKIPPED} optimizer steps in a row were skipped with the loss scale {scale}, \
                 {which}: gradients are not finite for another reason; try a lower learning rate, \
                 clipping, `full_precision` for the parts that overflow, or bf16-mixed; \
                 `detect_anomaly` names the layer"
            ),
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// As `torch.amp.GradScaler(init_scale, 2.0, 0.5, 2000)` does it, written down from its
    /// documentation of `update`.
    #[test]
    fn follows_the_rule_of_pytorch() {
        let mut scaler = Scaler::new(LossScale::DEFAULT);
        let (mut scale, mut tracker) = (65536.0_f32, 0);
        let mut random = 1_u32;
        for _ in 0..30_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let overflows = random >> 16 < 20;
            if overflows {
                scaler.on_skip().unwrap();
                (scale, tracker) = (scale * 0.5, 0);
            } else {
                scaler.on_step();
                tracker += 1;
                if tracker == 2000 {
                    (scale, tracker) = (scale * 2.0, 0);
                }
            }
            // Where PyTorch's would go on below.
            scale = scale.max(1.0);
            assert_eq!((scaler.scale, scaler.steps), (scale, tracker));
        }
    }

    #[test]
    fn never_grows_out_of_its_format() {
        let mut scaler = Scaler::new(LossScale::Dynamic { start: f32::MAX });
        (0..2000).for_each(|_| scaler.on_step());
        assert_eq!((scaler.scale, scaler.steps), (f32::MAX, 0));
    }

    #[test]
    fn ends_after_ten_skips_at_the_smallest_scale() {
        let mut scaler = Scaler::new(LossScale::Dynamic { start: 4.0 });
        let until_error = |scaler: &mut Scaler| {
            let skips = std::iter::repeat_with(|| scaler.on_skip()).take(100);
            skips.take_while(Result::is_ok).count()
        };
        // Two that halve it, nine that are let pass.
        assert_eq!(until_error(&mut scaler), 11);
        let mut scaler = Scaler::new(LossScale::Static(8.0));
        assert_eq!(until_error(&mut scaler), 9);
        assert_eq!(scaler.scale, 8.0);
        // A step between two of them begins the count anew.
        scaler.on_step();
        assert_eq!(until_error(&mut scaler), 9);
    }

    #[test]
    fn a_scale_that_stays_takes_nothing_over() {
        let mut saved = Scaler::new(LossScale::DEFAULT);
        saved.on_skip().unwrap();
        let mut resumed = Scaler::new(LossScale::Static(8.0));
        resumed.resume(&saved).unwrap();
        assert_eq!(resumed.scale, 8.0);
        let mut resumed = Scaler::new(LossScale::DEFAULT);
        resumed.resume(&saved).unwrap();
        assert_eq!(resumed, saved);
        // Of a file that somebody has changed.
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let changed = Scaler {
                scale,
                ..saved.clone()
            };
            assert_eq!(
                resumed.resume(&changed).unwrap_err().kind(),
                ErrorKind::Corrupt
            );
        }
        resumed.steps = u32::MAX;
        resumed.on_step();
        assert_eq!(resumed.steps, 0);
    }
}
