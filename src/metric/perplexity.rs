use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

use super::labels::{Labels, accumulator, all_valid, count, same_rows, some_classes};
use super::{Metric, Observation};
use crate::error::{Error, Result};

/// The exponential of the mean negative log-likelihood of a token, over all tokens of all batches.
///
/// The statistics are (Σ of the negative log-likelihood in nats, tokens in range, tokens).
///
/// ```
/// use firebox::metric::{self, MetricState, Perplexity};
///
/// type B = burn_ndarray::NdArray;
/// # fn main() -> firebox::Result<()> {
/// let perplexity = Perplexity::new();
/// let loss = |x: f32| burn::tensor::Tensor::<B, 1>::from_floats([x], &Default::default());
/// let batches = vec![
///     ("ppl", perplexity.observe_mean(loss(1.0), 1)?, 1.0),
///     ("ppl", perplexity.observe_mean(loss(2.0), 1)?, 1.0),
/// ];
/// let states = metric::read(batches)?;
/// let mut epoch = states[0].1.clone();
/// epoch.merge(&states[1].1)?;
/// assert_eq!(epoch.value(), Some(1.5_f64.exp())); // not (e + e²) / 2
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Perplexity {
    ignore: Option<i64>,
}

impl Perplexity {
    /// The perplexity of all targets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out targets with this label, such as padding. It concerns
    /// [`Perplexity::observe`] alone: a sum or mean is taken as given.
    #[must_use]
    pub fn ignore_index(mut self, label: i64) -> Self {
        self.ignore = Some(label);
        self
    }

    /// A batch of logits `[N, C]` and targets `[N]`, tokens numbered from 0.
    ///
    /// # Errors
    ///
    /// When the numbers of rows differ. A target that is no class is reported when the value is
    /// computed.
    pub fn observe<B: Backend>(
        &self,
        logits: Tensor<B, 2>,
        targets: Tensor<B, 1, Int>,
    ) -> Result<Observation<B>> {
        let [rows, classes] = logits.dims();
        let n = same_rows("logits", rows, targets.dims()[0])?;
        some_classes(classes)?;
        if n == 0 {
            return Ok(Observation::new(self.clone(), None, Vec::new()));
        }
        let to = accumulator(logits.dtype());
        let labels = Labels::new(targets, classes, self.ignore);
        let log_likelihood = log_softmax(logits.detach().cast(to), 1)
            .gather(1, labels.index.reshape([n, 1]))
            .reshape([n])
            .mask_fill(labels.valid.clone().bool_not(), 0.0);
        let statistics = vec![
            log_likelihood.sum().neg(),
            count(labels.valid, to),
            count(labels.counted, to),
        ];
        let statistics = Some(Tensor::cat(statistics, 0));
        Ok(Observation::new(self.clone(), statistics, Vec::new()))
    }

    /// The mean negative log-likelihood, shape `[1]` and in nats, of `tokens` tokens: a
    /// cross-entropy loss as it is.
    ///
    /// # Errors
    ///
    /// When it is not one value.
    pub fn observe_mean<B: Backend>(
        &self,
        mean: Tensor<B, 1>,
        tokens: usize,
    ) -> Result<Observation<B>> {
        let to = accumulator(mean.dtype());
        self.observe_sum(mean.detach().cast(to).mul_scalar(tokens as f64), tokens)
    }

    /// The summed negative log-likelihood, shape `[1]` and in nats, of `tokens` tokens.
    ///
    /// # Errors
    ///
    /// When it is not one value.
    pub fn observe_sum<B: Backend>(
        &self,
        sum: Tensor<B, 1>,
        tokens: usize,
    ) -> Result<Observation<B>> {
        let [len] = sum.dims();
        if len != 1 {
            return Err(Error::user(format!(
                "a log-likelihood of shape [{len}] is not one value; give its `.sum()` or `.mean()`"
            )));
        }
        // The mean over no token is NaN, and nothing was seen.
        if tokens == 0 {
            return Ok(Observation::new(self.clone(), None, Vec::new()));
        }
        let tokens = tokens as f64;
        let host = vec![tokens, tokens];
        Ok(Observation::new(self.clone(), Some(sum.detach()), host))
    }
}

impl Metric for Perplexity {
    fn compute(&self, state: &[f64]) -> Vec<(String, f64)> {
        match state {
            [nll, tokens, ..] => vec![(String::new(), (nll / tokens).exp())],
            _ => Vec::new(),
        }
    }

    fn check(&self, state: &[f64]) -> Result<()> {
        match *state {
            [_, valid, counted] => all_valid(valid, counted),
            _ => Ok(()),
        }
    }
}
