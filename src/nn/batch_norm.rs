//! Batch normalization over the whole batch.

use super::sync::mean_over_replicas;
use burn::config::Config;
use burn::module::{
    Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param, RunningState,
};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

/// The settings of a [`SyncBatchNorm`].
#[derive(Config, Debug)]
pub struct SyncBatchNormConfig {
    /// The number of channels.
    pub num_features: usize,
    /// What is added to the variance, so that it is never 0.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The weight of the newest batch in the running statistics.
    #[config(default = 0.1)]
    pub momentum: f64,
}

/// Batch normalization (Ioffe and Szegedy 2015), over the whole batch however many devices it is
/// spread over.
///
/// y = (x - mean) / √(variance + ε) · γ + β, for each channel; the channels are dimension 1 of
/// `[batch, channels, ...]`. In training, mean and variance are the batch's, and the running ones
/// move towards them; in evaluation, they are the running ones.
///
/// It takes the place of Burn's `BatchNorm`: the same fields and records, so weights fit both, and
/// the same numbers on one device. As Burn's, its variance is Σ(x - mean)² / n, in the running
/// statistics too, where PyTorch has n - 1.
///
/// On several devices, the statistics and the gradients are those of the whole batch, so a run on N
/// devices is the run on one, but for rounding. Each device waits for the others twice in a forward
/// and twice in a backward pass, and each time a number for each channel goes through the host's
/// memory. A device whose part is empty takes no part. The devices must agree on which of
/// these layers they call, how often and in which order, and on which of them the loss depends on.
/// On a backend that is none of firebox's accelerators each device keeps to its own part.
///
/// ```
/// use burn::tensor::{Distribution, Tensor};
/// use firebox::nn::SyncBatchNormConfig;
/// use firebox::testing::Cpu;
///
/// let device = Default::default();
/// let norm = SyncBatchNormConfig::new(3).init::<Cpu>(&device);
/// let images = Tensor::<Cpu, 4>::random([2, 3, 8, 8], Distribution::Uniform(5.0, 9.0), &device);
/// let mean: f32 = norm.forward(images).mean().into_scalar();
/// assert!(mean.abs() < 1e-4);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SyncBatchNorm<B: Backend> {
    /// The scale γ, of shape `[channels]`.
    pub gamma: Param<Tensor<B, 1>>,
    /// The shift β, of shape `[channels]`.
    pub beta: Param<Tensor<B, 1>>,
    /// The running mean, of shape `[channels]`.
    pub running_mean: RunningState<Tensor<B, 1>>,
    /// The running variance, of shape `[channels]`.
    pub running_var: RunningState<Tensor<B, 1>>,
    /// The weight of the newest batch in the running statistics.
    pub momentum: f64,
    /// What is added to the variance.
    pub epsilon: f64,
}

impl SyncBatchNormConfig {
    /// A layer that does not scale or shift yet.
    pub fn init<B: Backend>(&self, device: &B::Device) -> SyncBatchNorm<B> {
        let channels = [self.num_features];
        SyncBatchNorm {
            gamma: Initializer::Ones.init(channels, device),
            beta: Initializer::Zeros.init(channels, device),
            running_mean: RunningState::new(Tensor::zeros(channels, device)),
            running_var: RunningState::new(Tensor::ones(channels, device)),
            momentum: self.momentum,
            epsilon: self.epsilon,
        }
    }
}

impl<B: Backend> SyncBatchNorm<B> {
    /// Normalizes a batch of shape `[batch, channels, ...]`; the output has the same shape.
    ///
    /// Fewer than two dimensions are an error of the compiler.
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        const {
            assert!(
                D >= 2,
                "`SyncBatchNorm` needs a batch of shape [batch, channels, ...]"
            )
        };
        let (mean, var) = match B::ad_enabled(&input.device()) {
            true => self.update(&input),
            false => (self.running_mean.value(), self.running_var.value()),
        };
        self.normalize(input, mean, var)
    }

    /// The mean and variance of the whole batch; the running ones move towards them.
    fn update<const D: usize>(&self, input: &Tensor<B, D>) -> (Tensor<B, 1>, Tensor<B, 1>) {
        let (mean, var) = batch_statistics(input);
        for (running, batch) in [(&self.running_mean, &mean), (&self.running_var, &var)] {
            let old = running.value_sync().to_device(&batch.device());
            let new = batch.clone().detach().mul_scalar(self.momentum);
            running.update(old.mul_scalar(1.0 - self.momentum).add(new).detach());
        }
        (mean, var)
    }

    fn normalize<const D: usize>(
        &self,
        input: Tensor<B, D>,
        mean: Tensor<B, 1>,
        var: Tensor<B, 1>,
    ) -> Tensor<B, D> {
        let device = input.device();
        let std = var.to_device(&device).add_scalar(self.epsilon).sqrt();
        input
            .sub(per_channel(mean.to_device(&device)))
            .div(per_channel(std))
            .mul(per_channel(self.gamma.val()))
            .add(per_channel(self.beta.val()))
    }
}

/// Each channel's mean and variance over all replicas, each of shape `[channels]`.
///
/// The variance is that around the mean of all, which takes a second sum over the replicas: the
/// difference of the mean square and the squared mean, which takes one, is all rounding error where
/// the mean is far from 0.
fn batch_statistics<B: Backend, const D: usize>(
    input: &Tensor<B, D>,
) -> (Tensor<B, 1>, Tensor<B, 1>) {
    let dims = input.dims();
    let count = dims.iter().product::<usize>() / dims[1].max(1);
    let mean = mean_over_replicas(channel_mean(input.clone(), count), count as f64);
    let centred = input.clone().sub(per_channel(mean.clone()));
    let var = mean_over_replicas(channel_mean(centred.square(), count), count as f64);
    (mean, var)
}

/// The mean of each channel's `count` values, of shape `[channels]`.
fn channel_mean<B: Backend, const D: usize>(input: Tensor<B, D>, count: usize) -> Tensor<B, 1> {
    let channels = input.dims()[1];
    let values = input.swap_dims(0, 1).reshape([channels, count]);
    values.mean_dim(1).reshape([channels])
}

/// One value for each channel, in the shape `[1, channels, 1, ...]`.
fn per_channel<B: Backend, const D: usize>(values: Tensor<B, 1>) -> Tensor<B, D> {
    let mut shape = [1; D];
    shape[1] = values.dims()[0];
    values.reshape(shape)
}

/// The same layer, parameters and their ids included.
impl<B: Backend> From<burn::nn::BatchNorm<B>> for SyncBatchNorm<B> {
    fn from(layer: burn::nn::BatchNorm<B>) -> Self {
        Self {
            gamma: layer.gamma,
            beta: layer.beta,
            running_mean: layer.running_mean,
            running_var: layer.running_var,
            momentum: layer.momentum,
            epsilon: layer.epsilon,
        }
    }
}

impl<B: Backend> ModuleDisplay for SyncBatchNorm<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [num_features] = self.beta.shape().dims();
        content
            .add("num_features", &num_features)
            .add("momentum", &self.momentum)
            .add("epsilon", &self.epsilon)
            .optional()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::context::testing::on_replicas;
    use super::*;
    use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Recorder};
    use burn::tensor::TensorData;
    use burn::tensor::backend::AutodiffBackend;
    use std::ops::Range;

    /// What a layer gives for a part of the batch: by name, so that a failure says what differs.
    #[derive(Debug, Clone, PartialEq)]
    struct Outcome {
        output: Vec<f32>,
        input: Vec<f32>,
        gamma: Vec<f32>,
        beta: Vec<f32>,
        mean: Vec<f32>,
        var: Vec<f32>,
    }

    fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
        tensor.into_data().iter().collect()
    }

    /// Some rows of a batch of numbers around `offset`.
    fn rows<B: Backend, const D: usize>(
        shape: [usize; D],
        rows: Range<usize>,
        offset: f64,
    ) -> Tensor<B, D> {
        let numbers = (0..shape.iter().product()).map(|i| {
            let noise = f64::sin(i as f64 * 12.9898) * 43758.5453;
            offset + (noise - noise.floor() - 0.5) * f64::sqrt(12.0)
        });
        let data = TensorData::new(numbers.collect::<Vec<f64>>(), shape);
        let all = Tensor::<B, D>::from_data(data, &Default::default());
        all.narrow(0, rows.start, rows.len())
    }

    fn burns<B: Backend>(channels: usize) -> burn::nn::BatchNorm<B> {
        let mut layer = burn::nn::BatchNormConfig::new(channels).init(&Default::default());
        let parameter = |from: f32| {
            let values: Vec<f32> = (0..channels).map(|c| from + 0.3 * c as f32).collect();
            Param::from_data(TensorData::new(values, [channels]), &Default::default())
        };
        (layer.gamma, layer.beta) = (parameter(0.5), parameter(-0.2));
        layer
    }

    /// Two training steps of a part of the batch, with the layer's fields and its `forward`.
    macro_rules! outcome {
        ($layer:expr, $shape:expr, $rows:expr, $offset:expr) => {{
            let (layer, part) = ($layer, $rows);
            let _ = layer.forward(rows($shape, part.clone(), $offset + 1.0));
            let x = rows($shape, part.clone(), $offset).require_grad();
            let y = layer.forward(x.clone());
            let weights = rows($shape, part, 0.5);
            let gradients = (y.clone().square() * weights).sum().backward();
            Outcome {
                output: values(y),
                input: values(x.grad(&gradients).unwrap()),
                gamma: values(layer.gamma.grad(&gradients).unwrap()),
                beta: values(layer.beta.grad(&gradients).unwrap()),
                mean: values(layer.running_mean.value_sync()),
                var: values(layer.running_var.value_sync()),
            }
        }};
    }

    fn close(what: &str, got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len(), "{what}");
        let scale = expected.iter().fold(1_f32, |most, e| most.max(e.abs()));
        for (got, expected) in got.iter().zip(expected) {
            let apart = (got - expected).abs() / scale;
            assert!(apart < 1e-5, "{what}: {got} is not {expected}");
        }
    }

    fn sum<'a>(parts: impl Iterator<Item = &'a Vec<f32>>) -> Vec<f32> {
        let add = |a: Vec<f32>, b: &Vec<f32>| a.iter().zip(b).map(|(a, b)| a + b).collect();
        parts.fold(vec![0.0; 3], add)
    }

    /// On replicas with parts of these sizes, beside Burn's layer with the whole batch.
    fn replicas_are_one<B: AutodiffBackend, const D: usize>(shape: [usize; D], parts: &[usize]) {
        let whole = outcome!(burns::<B>(shape[1]), shape, 0..shape[0], 2.0);
        let parts = on_replicas(parts, true, |_, part| {
            outcome!(SyncBatchNorm::from(burns::<B>(shape[1])), shape, part, 2.0)
        })
        .unwrap();
        let all = |of: fn(&Outcome) -> &Vec<f32>| {
            let parts: Vec<f32> = parts.iter().flat_map(of).copied().collect();
            parts
        };
        close("output", &all(|part| &part.output), &whole.output);
        close("input", &all(|part| &part.input), &whole.input);
        close("gamma", &sum(parts.iter().map(|p| &p.gamma)), &whole.gamma);
        close("beta", &sum(parts.iter().map(|p| &p.beta)), &whole.beta);
        for part in &parts {
            close("running mean", &part.mean, &whole.mean);
            close("running variance", &part.var, &whole.var);
        }
    }

    fn one_replica_is_burns<B: AutodiffBackend, const D: usize>(shape: [usize; D]) {
        let expected = outcome!(burns::<B>(shape[1]), shape, 0..shape[0], 2.0);
        let alone = outcome!(
            SyncBatchNorm::from(burns::<B>(shape[1])),
            shape,
            0..shape[0],
            2.0
        );
        assert_eq!(alone, expected);
        // Nor does a run with one replica differ, by more than rounding.
        replicas_are_one::<B, D>(shape, &shape[..1]);
    }

    macro_rules! on_accelerators {
        ($($feature:literal => $name:ident: $accelerator:path),* $(,)?) => {$(
            #[cfg(feature = $feature)]
            mod $name {
                use super::*;

                type Cpu = <$accelerator as firebox_backend::Accelerator>::Backend;

                #[test]
                fn one_replica_is_burns_layer() {
                    one_replica_is_burns::<Cpu, 2>([8, 3]);
                    one_replica_is_burns::<Cpu, 3>([8, 3, 4]);
                    one_replica_is_burns::<Cpu, 4>([8, 3, 4, 2]);
                }

                #[test]
                fn replicas_are_one_with_the_whole_batch() {
                    for parts in [&[5, 3][..], &[4, 3, 1]] {
                        replicas_are_one::<Cpu, 2>([8, 3], parts);
                        replicas_are_one::<Cpu, 3>([8, 3, 4], parts);
                        replicas_are_one::<Cpu, 4>([8, 3, 4, 2], parts);
                    }
                }

                #[test]
                fn each_replica_keeps_to_its_part_if_asked_to() {
                    far_from_the_whole_batch::<Cpu>();
                }

                #[test]
                fn a_mean_far_from_0_leaves_the_variance_right() {
                    variance_around_a_large_mean::<Cpu>();
                }

                #[test]
                fn evaluation_takes_the_running_statistics() {
                    evaluation_is_burns::<Cpu>();
                }

                #[test]
                fn parallel_branches_do_not_wait_for_each_other() {
                    parallel_branches::<Cpu>();
                }
            }
        )*};
    }

    on_accelerators! {
        "flex" => flex: firebox_flex::Flex,
        "ndarray" => ndarray: firebox_ndarray::NdArray,
    }

    fn far_from_the_whole_batch<B: AutodiffBackend>() {
        let shape = [8, 3];
        let whole = outcome!(burns::<B>(3), shape, 0..8, 2.0);
        let parts = on_replicas(&[5, 3], false, |_, part| {
            outcome!(SyncBatchNorm::from(burns::<B>(3)), shape, part, 2.0)
        })
        .unwrap();
        for part in parts {
            assert!((part.var[0] - whole.var[0]).abs() > 1e-3);
        }
    }

    fn variance_around_a_large_mean<B: AutodiffBackend>() {
        let variance = |part, offset| {
            let (_, var) = batch_statistics(&rows::<B, 3>([512, 2, 4], part, offset));
            values(var)
        };
        let expected = variance(0..512, 0.0);
        let parts = on_replicas(&[300, 212], true, |_, part| variance(part, 1e4)).unwrap();
        for var in parts {
            for (var, expected) in var.iter().zip(&expected) {
                // Around 10,000 there are numbers only every 0.001.
                assert!((var - expected).abs() < 1e-3, "{var} is not {expected}");
            }
        }
    }

    fn evaluation_is_burns<B: AutodiffBackend>() {
        let (theirs, ours) = (burns::<B>(3), SyncBatchNorm::from(burns::<B>(3)));
        let batch = || rows::<B, 3>([8, 3, 4], 0..8, 2.0);
        let _ = (theirs.forward(batch()), ours.forward(batch()));
        let theirs = burn::module::AutodiffModule::valid(&theirs);
        let ours = burn::module::AutodiffModule::valid(&ours);
        let (theirs, ours) = (
            theirs.forward(batch().inner()),
            ours.forward(batch().inner()),
        );
        assert_eq!(values(ours), values(theirs));
    }

    /// Two layers at the same depth, of which the replicas add up the outputs in different orders.
    fn parallel_branches<B: AutodiffBackend>() {
        for round in 0..200 {
            let parts = if round % 2 == 0 {
                &[5, 3][..]
            } else {
                &[4, 3, 1]
            };
            on_replicas(parts, true, |replica, part| {
                let x = rows::<B, 2>([8, 3], part, 2.0);
                let narrow = SyncBatchNorm::from(burns::<B>(2));
                let wide = SyncBatchNorm::from(burns::<B>(3));
                let a = x.clone().narrow(1, 0, 2).require_grad();
                let b = x.require_grad();
                let (a, b) = (narrow.forward(a).square(), wide.forward(b).square());
                let loss = match replica {
                    1 => a.sum() + b.sum(),
                    _ => b.sum() + a.sum(),
                };
                loss.backward();
            })
            .unwrap();
        }
    }

    #[cfg(feature = "flex")]
    #[test]
    fn records_fit_burns_layer_and_back() {
        type Cpu = crate::testing::Cpu;
        let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
        let device = Default::default();
        let theirs = burns::<Cpu>(3);
        let _ = theirs.forward(rows([8, 3], 0..8, 2.0));
        let bytes = recorder.record(theirs.clone().into_record(), ()).unwrap();
        let record = recorder.load(bytes, &device).unwrap();
        let ours = SyncBatchNormConfig::new(3)
            .init::<Cpu>(&device)
            .load_record(record);
        assert_eq!(ours.gamma.id, theirs.gamma.id);
        assert_eq!(
            values(ours.running_var.value()),
            values(theirs.running_var.value())
        );

        let bytes = recorder.record(ours.into_record(), ()).unwrap();
        let record = recorder.load(bytes, &device).unwrap();
        let back = burn::nn::BatchNormConfig::new(3).init::<Cpu>(&device);
        let back = back.load_record(record);
        assert_eq!(values(back.beta.val()), values(theirs.beta.val()));
        assert_eq!(
            format!("{}", SyncBatchNorm::from(back.clone())).replace("Sync", ""),
            format!("{back}")
        );
    }
}
