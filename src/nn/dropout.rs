//! Dropout whose masks do not depend on the number of devices.

use super::context::{self, DropoutCall};
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor, TensorData};

/// The settings of a [`Dropout`].
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// The probability of an element to be dropped, from 0 to 1.
    pub prob: f64,
}

/// Dropout (Srivastava and others 2014), with the same masks on any number of devices.
///
/// In training, each element is dropped with probability `prob`, and the others are scaled by
/// 1 / (1 - `prob`), so that the mean stays; in evaluation nothing happens. It takes the place of
/// Burn's `Dropout`.
///
/// What a sample draws depends on the seed, the epoch, the batch, the sample's position in the
/// whole batch, how many dropout layers were called before in the same forward pass, and the
/// element, and on nothing else: a run on N devices draws what the run on one does, and so does one
/// that is resumed. Burn's `Dropout` draws from one generator for the whole process instead.
///
/// The first dimension holds the samples, or a whole number of rows for each, as in
/// `[batch * time, channels]`. The mask is made in the host's memory, about 1 ns for an element in a
/// release build, and copied to the device: 4 bytes for an element. Outside of a run the masks are
/// Burn's.
///
/// ```
/// use burn::tensor::Tensor;
/// use firebox::nn::DropoutConfig;
/// use firebox::testing::Cpu;
///
/// let x = Tensor::<Cpu, 2>::ones([100, 100], &Default::default());
/// let dropped = DropoutConfig::new(0.5).init().forward(x);
/// let mean: f32 = dropped.mean().into_scalar();
/// assert!((mean - 1.0).abs() < 0.1);
/// ```
#[derive(Module, Clone, Debug)]
#[module(custom_display)]
pub struct Dropout {
    /// The probability of an element to be dropped.
    pub probability: f64,
}

impl DropoutConfig {
    /// The layer.
    ///
    /// # Panics
    /// If the probability is not from 0 to 1, as Burn's.
    pub fn init(&self) -> Dropout {
        let prob = self.prob;
        assert!(
            (0.0..=1.0).contains(&prob),
            "the probability of `Dropout` is {prob}; use a number from 0 to 1"
        );
        Dropout { probability: prob }
    }
}

impl Dropout {
    /// Drops elements of `[batch, ...]`, in training; the output has the same shape.
    pub fn forward<B: Backend, const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        let device = input.device();
        if !B::ad_enabled(&device) || self.probability == 0.0 {
            return input;
        }
        let keep = 1.0 - self.probability;
        let mask = match context::next_dropout() {
            Some(call) => {
                let mask = TensorData::new(mask(call, &input.dims(), keep), input.shape());
                Tensor::from_data(mask, (&device, input.dtype()))
            }
            None => {
                let kept = input.random_like(Distribution::Bernoulli(keep));
                kept.mul_scalar(scale(keep))
            }
        };
        input.mul(mask)
    }
}

/// What a kept element is multiplied with. Where none is kept, it is 0 and not infinite, which
/// would make NaN of what is dropped.
fn scale(keep: f64) -> f64 {
    match keep > 0.0 {
        true => 1.0 / keep,
        false => 0.0,
    }
}

/// What each element of a tensor of these dimensions is multiplied with.
fn mask(call: DropoutCall, dims: &[usize], keep: f64) -> Vec<f32> {
    let mut mask = vec![0.0; dims.iter().product()];
    let rows = dims.first().copied().unwrap_or(1);
    let groups = match call.samples > 0 && rows.is_multiple_of(call.samples) {
        true => call.samples,
        // These rows are no samples, and none belongs to one.
        false => rows,
    };
    let group = (mask.len() / groups.max(1)).max(1);
    let key = call.words.into_iter().fold(DROPOUT, folded);
    let kept = Kept {
        bound: (keep * 2_f64.powi(32)).round() as u64,
        scale: scale(keep) as f32,
    };
    for (i, elements) in mask.chunks_mut(group).enumerate() {
        let sample = (call.first_sample + i) as u64;
        kept.fill(elements, folded(key, sample));
    }
    mask
}

/// Which elements are kept: those that draw less than `bound`, of 2³².
struct Kept {
    bound: u64,
    scale: f32,
}

impl Kept {
    /// Fills in what the elements of one sample are multiplied with, two from each word of the
    /// stream that the key starts.
    fn fill(&self, elements: &mut [f32], key: u64) {
        let mut state = key;
        let (pairs, last) = elements.as_chunks_mut();
        for [first, second] in pairs {
            state = state.wrapping_add(STEP);
            let word = mixed(state);
            *first = self.factor(word as u32);
            *second = self.factor((word >> 32) as u32);
        }
        if let [last] = last {
            *last = self.factor(mixed(state.wrapping_add(STEP)) as u32);
        }
    }

    #[inline(always)]
    fn factor(&self, draw: u32) -> f32 {
        match u64::from(draw) < self.bound {
            true => self.scale,
            false => 0.0,
        }
    }
}

/// Sets the keys of dropout apart from other uses of the same words.
const DROPOUT: u64 = 0x6472_6f70_6f75_7400;

/// The step of SplitMix64: 2⁶⁴ divided by the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's mixer (Steele, Lea and Flood 2014): a random function of 64 bits, in about 1 ns. A
/// cipher, as for [`SampleRng`](crate::data::SampleRng), takes twenty times as long for short rows.
#[inline(always)]
fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The key, with one more word in it.
fn folded(key: u64, word: u64) -> u64 {
    mixed((key ^ word).wrapping_add(STEP))
}

/// The same layer.
impl From<burn::nn::Dropout> for Dropout {
    fn from(layer: burn::nn::Dropout) -> Self {
        Self {
            probability: layer.prob,
        }
    }
}

impl ModuleDisplay for Dropout {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("prob", &self.probability).optional()
    }
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::context::PassContext;
    use super::super::context::testing::{on_replicas, part};
    use super::super::context::within;
    use super::*;
    use burn::tensor::backend::AutodiffBackend;

    type Cpu = crate::testing::Cpu;

    /// What dropout leaves of a tensor of ones.
    fn dropped<const D: usize>(prob: f64, shape: [usize; D]) -> Vec<f32> {
        let ones = Tensor::<Cpu, D>::ones(shape, &Default::default());
        let output = DropoutConfig::new(prob).init().forward(ones);
        output.into_data().to_vec().unwrap()
    }

    #[test]
    fn replicas_draw_what_one_draws() {
        // Each has one row for a sample, then four, in two layers.
        let pass = |samples: usize| {
            let rows = dropped(0.3, [samples, 5, 7]);
            (rows, dropped(0.3, [samples * 4, 6]))
        };
        let whole = within(part(8, 0, None), || pass(8));
        let parts = on_replicas(&[4, 3, 1], false, |_, rows| pass(rows.len())).unwrap();
        let (rows, groups): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        assert_eq!((rows.concat(), groups.concat()), whole);
    }

    #[test]
    fn elements_are_dropped_at_the_rate_and_scaled() {
        for prob in [0.1, 0.5, 0.9] {
            let output = within(part(100, 0, None), || dropped(prob, [100, 1001]));
            let kept = output.iter().filter(|&&y| y != 0.0).count();
            let rate = 1.0 - kept as f64 / output.len() as f64;
            assert!((rate - prob).abs() < 0.01, "{rate}");
            let scale = (1.0 / (1.0 - prob)) as f32;
            assert!(output.iter().all(|&y| y == 0.0 || y == scale));
        }
        let all = within(part(10, 0, None), || dropped(1.0, [10, 10]));
        assert_eq!(all, [0.0; 100]);
    }

    #[test]
    fn masks_are_of_the_seed_epoch_batch_and_layer() {
        let mut masks = Vec::new();
        for (seed, epoch, batch) in [(7, 0, 0), (8, 0, 0), (7, 1, 0), (7, 0, 1)] {
            let context = || PassContext {
                seed,
                epoch,
                batch,
                ..part(4, 0, None)
            };
            let pass = || [dropped(0.5, [4, 32]), dropped(0.5, [4, 32])];
            let drawn = within(context(), pass);
            assert_eq!(within(context(), pass), drawn);
            masks.extend(drawn);
        }
        // The samples of each, too.
        let samples: Vec<&[f32]> = masks.iter().flat_map(|mask| mask.chunks(32)).collect();
        for (i, sample) in samples.iter().enumerate() {
            let same = sample.iter().zip(samples[(i + 1) % samples.len()]);
            assert!(same.filter(|(a, b)| a == b).count() < 30);
            assert!(!samples[..i].contains(sample));
        }
    }

    #[test]
    fn masks_stay_the_same_between_versions() {
        let mask = within(part(2, 0, None), || dropped(0.5, [2, 7]));
        let kept: String = mask
            .iter()
            .map(|&y| if y > 0.0 { '1' } else { '0' })
            .collect();
        assert_eq!(kept, "00001000000111");
    }

    #[test]
    fn rows_that_are_no_samples_are_dropped_by_themselves() {
        let output = within(part(4, 0, None), || dropped(0.5, [6, 500]));
        let rows: Vec<&[f32]> = output.chunks(500).collect();
        assert!((1..6).all(|i| !rows[..i].contains(&rows[i])));
    }

    #[test]
    fn nothing_is_dropped_in_evaluation_or_with_probability_0() {
        type Inner = <Cpu as AutodiffBackend>::InnerBackend;
        let ones = Tensor::<Inner, 2>::ones([4, 50], &Default::default());
        let output = within(part(4, 0, None), || {
            DropoutConfig::new(0.5).init().forward(ones.clone())
        });
        output.into_data().assert_eq(&ones.into_data(), true);
        assert_eq!(within(part(4, 0, None), || dropped(0.0, [4, 5])), [1.0; 20]);
    }

    #[test]
    fn outside_of_a_run_masks_are_burns() {
        let output = dropped(0.5, [100, 100]);
        let kept = output.iter().filter(|&&y| y == 2.0).count();
        assert!((4_500..5_500).contains(&kept), "{kept}");
        assert!(output.iter().all(|&y| y == 0.0 || y == 2.0));
        assert_eq!(dropped(1.0, [2, 2]), [0.0; 4]);
    }

    #[test]
    fn gradients_flow_through_what_is_kept() {
        let x = Tensor::<Cpu, 2>::ones([4, 8], &Default::default()).require_grad();
        let dropout = Dropout::from(burn::nn::DropoutConfig::new(0.5).init());
        let y = within(part(4, 0, None), || dropout.forward(x.clone()));
        let gradients = y.clone().sum().backward();
        let gradient = x.grad(&gradients).unwrap();
        y.into_data().assert_eq(&gradient.into_data(), true);
        assert_eq!(format!("{dropout}"), "Dropout {prob: 0.5}");
    }

    #[test]
    #[should_panic = "the probability of `Dropout` is 1.5; use a number from 0 to 1"]
    fn a_probability_beyond_1_is_refused() {
        DropoutConfig::new(1.5).init();
    }
}
