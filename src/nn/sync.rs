//! Means over all replicas that gradients flow through.

use super::context::{self, Replicas};
use crate::accelerators::for_each_accelerator;
use crate::error::{Error, Result};
use crate::panics;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorData, TensorPrimitive};
use firebox_backend::{Accelerator, Balanced};
use std::any::Any;
use std::sync::Arc;

/// The mean over all replicas of each value, this one's weighing `weight`: Σ w·x / Σ w. Of shape
/// `[values]`, as what comes back.
///
/// `mean` itself where there is one replica only, and for a backend that is not an accelerator's:
/// Burn's `Backend` alone does not say how to add an operation to its graph.
///
/// # Panics
/// If another replica has failed or does not come: an operation of a model has no other way out.
pub(super) fn mean_over_replicas<B: Backend>(mean: Tensor<B, 1>, weight: f64) -> Tensor<B, 1> {
    match context::replicas() {
        Some(replicas) => by_accelerator(&mean, weight, replicas).unwrap_or(mean),
        None => mean,
    }
}

macro_rules! by_accelerator {
    ($($feature:literal => $accelerator:path),* $(,)?) => {
        /// The mean, if the backend is an accelerator's: its name is known here, so what is generic
        /// over all backends meets what is written for those with a graph.
        fn by_accelerator<B: Backend>(
            mean: &Tensor<B, 1>,
            weight: f64,
            replicas: Replicas,
        ) -> Option<Tensor<B, 1>> {
            $(
                #[cfg(feature = $feature)]
                if let Some(known) = same::<_, Tensor<<$accelerator as Accelerator>::Backend, 1>>(mean) {
                    return same(&mean_on(known.clone(), weight, replicas)).cloned();
                }
                #[cfg(feature = $feature)]
                if let Some(known) =
                    same::<_, Tensor<Balanced<<$accelerator as Accelerator>::Backend>, 1>>(mean)
                {
                    return same(&mean_on(known.clone(), weight, replicas)).cloned();
                }
            )*
            None
        }
    };
}

for_each_accelerator!(by_accelerator);

/// A value of one type as one of another, if they are the same type.
fn same<T: 'static, U: 'static>(value: &T) -> Option<&U> {
    (value as &dyn Any).downcast_ref()
}

/// The operation, put into the graph of gradients.
fn mean_on<I: Backend, C: CheckpointStrategy>(
    mean: Tensor<Autodiff<I, C>, 1>,
    weight: f64,
    replicas: Replicas,
) -> Tensor<Autodiff<I, C>, 1> {
    let mean = mean.into_primitive().tensor();
    let (value, total) = mean_of_values::<I>(mean.primitive, weight, &replicas);
    let before = at_depth::<I, C>(value.clone(), context::depth());
    let operation = MeanOverReplicas.prepare::<C>([mean.node, before.node]);
    let output = match operation.compute_bound().stateful() {
        OpsKind::Tracked(tracked) => {
            let share = weight / total;
            tracked.finish(Share { share, replicas }, value)
        }
        OpsKind::UnTracked(untracked) => untracked.finish(value),
    };
    context::set_depth(output.node.order);
    Tensor::from_primitive(TensorPrimitive::Float(output))
}

/// A constant that Burn takes to lie this deep in the graph.
///
/// A backward pass goes from deep to shallow. With a parent as deep as the last operation of this
/// kind, each of them lies deeper than the one before, so that all replicas come to them in the
/// reverse order of the forward pass, whatever lies between. A constant gets no gradient, and the
/// pass does not go on from it: a layer that the loss does not depend on stays out, as on one
/// replica.
fn at_depth<I: Backend, C: CheckpointStrategy>(
    value: FloatTensor<I>,
    depth: Option<usize>,
) -> FloatTensor<Autodiff<I, C>> {
    let mut constant = Autodiff::<I, C>::from_inner(value);
    if let (Some(node), Some(depth)) = (Arc::get_mut(&mut constant.node), depth) {
        node.order = depth;
    }
    constant
}

#[derive(Debug)]
struct MeanOverReplicas;

/// This replica's weight in the mean, of 1.
#[derive(Debug, Clone)]
struct Share {
    share: f64,
    replicas: Replicas,
}

impl<I: Backend> Backward<I, 2> for MeanOverReplicas {
    type State = Share;

    /// Every replica's loss depends on every replica's values through the mean, and what is trained
    /// on is the sum of the losses: dx = share · Σ dy.
    fn backward(self, ops: Ops<Share, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let Share { share, replicas } = ops.state;
        let gradient = grads.consume::<I>(&ops.node);
        let [mean, _] = ops.parents;
        let gradient = on_host::<I>(gradient, |values| {
            let sums = or_unwind(replicas.sum(values));
            sums.into_iter().map(|sum| sum * share).collect()
        });
        if let Some(mean) = mean {
            grads.register::<I>(mean.id, gradient);
        }
    }
}

/// The mean over all replicas, and the sum of their weights.
fn mean_of_values<I: Backend>(
    mean: FloatTensor<I>,
    weight: f64,
    replicas: &Replicas,
) -> (FloatTensor<I>, f64) {
    let mut total = weight;
    let mean = on_host::<I>(mean, |values| {
        let weighted = values.into_iter().map(|value| value * weight);
        let mut sums = or_unwind(replicas.sum(weighted.chain([weight]).collect()));
        total = sums.pop().unwrap_or(weight);
        sums.into_iter().map(|sum| sum / total).collect()
    });
    (mean, total)
}

/// Changes the values of a tensor in the host's memory, in 64 bits. They are one or two numbers for
/// each channel: little to move, and sums of a whole batch would not fit into 16 bits.
fn on_host<I: Backend>(
    tensor: FloatTensor<I>,
    change: impl FnOnce(Vec<f64>) -> Vec<f64>,
) -> FloatTensor<I> {
    let tensor = Tensor::<I, 1>::from_primitive(TensorPrimitive::Float(tensor));
    let (device, dtype, shape) = (tensor.device(), tensor.dtype(), tensor.shape());
    let values = change(tensor.into_data().iter::<f64>().collect());
    let changed = TensorData::new(values, shape);
    let changed = Tensor::<I, 1>::from_data(changed, (&device, dtype));
    changed.into_primitive().tensor()
}

/// The value, or a way out to the trainer with the error.
fn or_unwind<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error: Error| {
        panics::leave_with(error.context("a layer's statistics over all replicas"))
    })
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::context::testing::{on_replicas, part};
    use super::super::context::{SumOverReplicas, meet, within};
    use super::*;
    use crate::error::ErrorKind;

    type Cpu = <firebox_flex::Flex as Accelerator>::Backend;

    fn leaf(values: &[f32]) -> Tensor<Cpu, 1> {
        Tensor::from_data(values, &Default::default()).require_grad()
    }

    fn values<B: Backend>(tensor: Tensor<B, 1>) -> Vec<f32> {
        tensor.into_data().iter().collect()
    }

    #[test]
    fn means_are_weighed_and_gradients_add_up() {
        let outcomes = on_replicas(&[1, 1], true, |replica, _| {
            // (1·2 + 3·6) / 4 = 5, and each replica's loss depends on the mean in its own way.
            let x = leaf(&[[2.0, 0.0], [6.0, 4.0]][replica]);
            let mean = mean_over_replicas(x.clone(), [1.0, 3.0][replica]);
            let loss = mean.clone().mul_scalar([10.0, 2.0][replica]).sum();
            (values(mean), values(x.grad(&loss.backward()).unwrap()))
        })
        .unwrap();
        assert_eq!(outcomes[0], (vec![5.0, 3.0], vec![3.0, 3.0]));
        assert_eq!(outcomes[1], (vec![5.0, 3.0], vec![9.0, 9.0]));
    }

    #[test]
    fn replicas_come_to_parallel_branches_in_the_same_order() {
        for _ in 0..200 {
            on_replicas(&[1, 1, 1], true, |replica, _| {
                let (a, b) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0, 5.0]));
                let one = mean_over_replicas(a.clone(), 1.0).sum();
                let other = mean_over_replicas(b.clone(), 1.0).sum();
                // Burn's order among operations of one depth follows this one.
                let loss = match replica {
                    1 => one + other,
                    _ => other + one,
                };
                let gradients = loss.backward();
                assert_eq!(values(a.grad(&gradients).unwrap()), [1.0; 2]);
                assert_eq!(values(b.grad(&gradients).unwrap()), [1.0; 3]);
            })
            .unwrap();
        }
    }

    #[test]
    fn what_the_loss_does_not_depend_on_gets_no_gradient() {
        on_replicas(&[1, 1], true, |_, _| {
            let (a, unused, b) = (leaf(&[1.0]), leaf(&[2.0]), leaf(&[3.0]));
            let one = mean_over_replicas(a.clone(), 1.0);
            let _ = mean_over_replicas(unused.clone().exp(), 1.0);
            let constant = mean_over_replicas(leaf(&[4.0]).detach(), 1.0);
            let other = mean_over_replicas(b.clone(), 1.0);
            let gradients = (one + other * constant).sum().backward();
            assert_eq!(values(a.grad(&gradients).unwrap()), [1.0]);
            assert_eq!(values(b.grad(&gradients).unwrap()), [4.0]);
            assert!(unused.grad(&gradients).is_none());
        })
        .unwrap();
    }

    #[test]
    fn several_backward_passes_follow_one_forward_pass() {
        for _ in 0..200 {
            on_replicas(&[1, 1], true, |replica, _| {
                let (a, b) = (leaf(&[1.0]), leaf(&[2.0]));
                // One replica has more to do after its last sum, and ends its first pass later.
                let before = (0..replica * 50).fold(a.clone(), |x, _| x * 1.0);
                let one = mean_over_replicas(before, 1.0);
                let other = mean_over_replicas(b.clone(), 1.0);
                let first = one.backward();
                meet().unwrap();
                let second = other.backward();
                assert_eq!(values(a.grad(&first).unwrap()), [1.0]);
                assert_eq!(values(b.grad(&second).unwrap()), [1.0]);
            })
            .unwrap();
        }
    }

    #[test]
    fn a_backend_that_is_no_accelerators_keeps_to_its_part() {
        type Other = Autodiff<burn_ndarray::NdArray<f64>>;
        let means = on_replicas(&[1, 1], true, |replica, _| {
            let x = Tensor::<Other, 1>::from_data([replica as f64], &Default::default());
            values(mean_over_replicas(x, 1.0))
        })
        .unwrap();
        assert_eq!(means, [[0.0], [1.0]]);
    }

    struct Gone;

    impl SumOverReplicas for Gone {
        fn sum(&self, _: Vec<f64>) -> Result<Vec<f64>> {
            Err(Error::data("process 3: no such file"))
        }
    }

    #[test]
    fn a_failure_elsewhere_is_an_error_here() {
        let pass = || Ok(mean_over_replicas(leaf(&[1.0]), 1.0));
        let error = within(part(1, 0, Some(Arc::new(Gone))), || {
            panics::catch(ErrorKind::User, pass)
        });
        let error = error.unwrap_err();
        let expected = "a layer's statistics over all replicas: process 3: no such file";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.kind(), ErrorKind::Data);
    }
}
