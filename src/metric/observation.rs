use std::fmt;
use std::sync::Arc;

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, Transaction};

use super::{Mean, Metric, MetricState};
use crate::error::{Error, ErrorKind, Result};

/// What one batch contributes to one logged name, left where it was computed.
///
/// Metrics make observations of statistics; a plain number, or a tensor of one element such as a
/// loss, becomes one by `into()` and is averaged, weighted by the samples of the batch.
///
/// ```
/// use burn::tensor::Tensor;
/// use firebox::metric::Observation;
///
/// type B = burn_ndarray::NdArray;
/// let loss = Tensor::<B, 1>::from_floats([0.25], &Default::default());
/// let on_device = Observation::from(&loss); // not read before someone looks
/// let on_host = Observation::<B>::from(0.25);
/// assert!(on_device.is_plain() && on_host.is_plain());
/// ```
#[derive(Clone)]
pub struct Observation<B: Backend> {
    /// The first statistics.
    device: Option<Tensor<B, 1>>,
    /// The statistics after them.
    host: Vec<f64>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// A value to average. Without a weight of its own it takes the batch's.
    Plain { weight: Option<f64> },
    /// The statistics of a metric.
    Statistics(Arc<dyn Metric>),
}

impl<B: Backend> Observation<B> {
    /// The statistics of one batch: those still on the device (a float tensor of any precision),
    /// followed by those that the host knows already. A batch with nothing to see gives neither.
    pub fn new(metric: impl Metric, device: Option<Tensor<B, 1>>, host: Vec<f64>) -> Self {
        Self {
            device,
            host,
            kind: Kind::Statistics(Arc::new(metric)),
        }
    }

    /// Whether this is a plain value, to be averaged, rather than a metric's statistics.
    pub fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Plain { .. })
    }

    /// The same, with the weight fixed rather than taken from the batch.
    pub(super) fn with_weight(mut self, own: f64) -> Result<Self> {
        let Kind::Plain { weight } = &mut self.kind else {
            return Err(Error::user(
                "a metric's statistics carry their own weight; only a plain value takes one",
            ));
        };
        *weight = Some(own);
        Ok(self)
    }

    fn plain(device: Option<Tensor<B, 1>>, host: Vec<f64>) -> Self {
        Self {
            device,
            host,
            kind: Kind::Plain { weight: None },
        }
    }

    /// The state for the values read from the device and `weight`, the samples of the batch.
    fn into_state(self, mut values: Vec<f64>, weight: f64) -> Result<MetricState> {
        values.extend(self.host);
        let own = match self.kind {
            Kind::Statistics(metric) => return Ok(MetricState::from_values(metric, values)),
            Kind::Plain { weight } => weight,
        };
        let weight = own.unwrap_or(weight);
        match values.as_slice() {
            // Nothing was seen, and 0 * NaN would say otherwise.
            [_] if weight == 0.0 => Ok(MetricState::new(Arc::new(Mean))),
            [value] => {
                let state = vec![value * weight, weight];
                Ok(MetricState::from_values(Arc::new(Mean), state))
            }
            values => Err(not_one_value(values.len())),
        }
    }

    /// Checks that a plain value is one, without reading it.
    pub(super) fn check(&self) -> Result<()> {
        let on_device = self.device.as_ref().map_or(0, |tensor| tensor.dims()[0]);
        match on_device + self.host.len() {
            values if self.is_plain() && values != 1 => Err(not_one_value(values)),
            _ => Ok(()),
        }
    }
}

impl<B: AutodiffBackend> Observation<B> {
    /// The same values, detached from the autodiff graph, which can then be freed.
    pub fn inner(self) -> Observation<B::InnerBackend> {
        Observation {
            device: self.device.map(Tensor::inner),
            host: self.host,
            kind: self.kind,
        }
    }
}

fn not_one_value(values: usize) -> Error {
    Error::user(format!(
        "a tensor of shape [{values}] is not one value; log its `.mean()`, or a metric"
    ))
}

/// Reads all observations, of one device, in one transfer. Each comes with its name and with the
/// weight of its batch (samples, or whatever the loss is averaged over), which plain values take.
///
/// A plain value of weight 0 counts as not seen.
///
/// # Errors
///
/// When a plain value is not one element ([`ErrorKind::User`], with its name and shape), or when
/// the backend reports a failure ([`ErrorKind::Backend`]).
pub fn read<B: Backend, N: fmt::Display>(
    mut observations: Vec<(N, Observation<B>, f64)>,
) -> Result<Vec<(N, MetricState)>> {
    let mut transaction = Transaction::<B>::default();
    let mut on_device = Vec::with_capacity(observations.len());
    for (_, observation, _) in &mut observations {
        let tensor = observation.device.take();
        on_device.push(tensor.is_some());
        if let Some(tensor) = tensor {
            transaction = transaction.register(tensor);
        }
    }
    let data = match on_device.contains(&true) {
        true => transaction.try_execute().map_err(|error| {
            Error::new(ErrorKind::Backend, "cannot read logged values")
                .with_source(error.to_string())
        })?,
        false => Vec::new(),
    };
    let mut data = data.into_iter();
    observations
        .into_iter()
        .zip(on_device)
        .map(|((name, observation, weight), on_device)| {
            let values = match on_device {
                true => data.next().map(|d| d.iter::<f64>().collect()),
                false => None,
            };
            match observation.into_state(values.unwrap_or_default(), weight) {
                Ok(state) => Ok((name, state)),
                Err(error) => Err(error.context(format!("`{name}`"))),
            }
        })
        .collect()
}

impl<B: Backend> From<Tensor<B, 1>> for Observation<B> {
    fn from(value: Tensor<B, 1>) -> Self {
        Self::plain(Some(value), Vec::new())
    }
}

impl<B: Backend> From<&Tensor<B, 1>> for Observation<B> {
    fn from(value: &Tensor<B, 1>) -> Self {
        value.clone().into()
    }
}

macro_rules! from_number {
    ($($number:ty),*) => {$(
        impl<B: Backend> From<$number> for Observation<B> {
            fn from(value: $number) -> Self {
                Self::plain(None, vec![value as f64])
            }
        }
    )*};
}
from_number!(f64, f32, usize, u64, u32, i64, i32);

impl<B: Backend> fmt::Debug for Observation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values on the device are not shown: that would wait for them.
        let device = self.device.as_ref().map(|t| t.dims());
        f.debug_struct("Observation")
            .field("plain", &self.is_plain())
            .field("device", &device)
            .field("host", &self.host)
            .finish()
    }
}
