//! Gradient checkpointing: what a block has computed is forgotten, and computed again when the
//! backward pass needs it.

use super::gradients::{Factors, Gradients};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Loss, LossValue, StepContext, TrainModule, short_type_name};
use crate::nn::context;
use crate::panics;
use crate::parameters::{has_dropout, has_statistics};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use firebox_autocast::{Pass, in_pass};

impl<B: AutodiffBackend> StepContext<B> {
    /// The loss of a model that is a row of blocks, one after another, such as the layers of a
    /// transformer.
    ///
    /// With [`gradient_checkpointing`](crate::TrainerConfig::gradient_checkpointing) a block's
    /// activations are not kept for the backward pass but computed again there: memory for the input
    /// of each block and the activations of one, against one more forward pass of the blocks (Chen
    /// et al., 2016, "Training Deep Nets with Sublinear Memory Cost"). Without it nothing is special,
    /// and the loss and its gradients are the same.
    ///
    /// `forward` runs one block, `loss` all that comes behind them; `model` is what the parameters
    /// of both are in. Give the returned loss back from the training step, as it is or with
    /// [`with_weight`](Loss::with_weight). Draws of dropout are repeated.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, loss::{MseLoss, Reduction}};
    /// # use burn::optim::SgdConfig;
    /// # use burn::tensor::{Tensor, activation::tanh, backend::{AutodiffBackend, Backend}};
    /// # use firebox::prelude::*;
    /// # #[derive(Module, Debug)]
    /// # struct Deep<B: Backend> { embed: Linear<B>, layers: Vec<Linear<B>>, head: Linear<B> }
    /// # type Points<B> = (Tensor<B, 2>, Tensor<B, 2>);
    /// # impl<B: Backend> EvalModule for Deep<B> { type Backend = B; type Batch = Points<B>; }
    /// impl<B: AutodiffBackend> TrainModule for Deep<B> {
    /// #    type Backend = B;
    /// #    type Batch = Points<B>;
    /// #    type Eval = Deep<B::InnerBackend>;
    /// #    fn configure_optimizers(&self) -> Result<Optimizers<Self>> {
    /// #        Ok(Optimizers::single(SgdConfig::new().init()).with_lr(0.1))
    /// #    }
    ///     fn training_step(&self, (x, y): Points<B>, cx: &mut StepContext<B>) -> Result<Loss<B>> {
    ///         let x = self.embed.forward(x);
    ///         let layer = |layer: &Linear<B>, x| tanh(layer.forward(x));
    ///         let loss = |x| MseLoss::new().forward(self.head.forward(x), y, Reduction::Mean);
    ///         cx.checkpoint_blocks(self, &self.layers, x, layer, loss)
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// With checkpointing on: blocks whose statistics would see each batch twice (batch
    /// normalization), Burn's `Dropout` on several devices, whose draws do not repeat
    /// (`firebox::nn::Dropout` does), a loss of more than one element, or what the backend reports.
    pub fn checkpoint_blocks<M, T, const D: usize>(
        &self,
        model: &M,
        blocks: &[T],
        input: Tensor<B, D>,
        forward: impl Fn(&T, Tensor<B, D>) -> Tensor<B, D>,
        loss: impl FnOnce(Tensor<B, D>) -> Tensor<B, 1>,
    ) -> Result<Loss<B>>
    where
        M: TrainModule<Backend = B>,
        T: Module<B>,
    {
        let run = |index: usize, block: &T, x: Tensor<B, D>| {
            // Burn's layers draw from a generator that has no place to go back to.
            if let Some(seed) = context::seed_of_block(index) {
                B::seed(self.device(), seed);
            }
            forward(block, x)
        };
        if !self.pass.recomputes {
            let blocks = blocks.iter().enumerate();
            let output = blocks.fold(input, |x, (index, block)| run(index, block, x));
            return Ok(loss(output).into());
        }
        self.check_blocks(blocks)?;
        // What enters each block, and how many dropouts there were before it.
        let mut entered = Vec::with_capacity(blocks.len());
        let mut x = input.clone().detach();
        for (index, block) in blocks.iter().enumerate() {
            entered.push((x.clone(), context::dropouts()));
            // Burn keeps a graph until the next backward pass, so there must be none.
            x = run(index, &block.clone().no_grad(), x);
        }
        let mut backward = Backward::new(model, self.pass.scale);
        let leaf = x.require_grad();
        let value = loss(leaf.clone());
        let mut slope = backward.through_loss(value.clone(), &leaf)?;
        let after = context::dropouts();
        for (index, (x, dropouts)) in entered.into_iter().enumerate().rev() {
            context::set_dropouts(dropouts);
            let leaf = x.require_grad();
            let output = run(index, &blocks[index], leaf.clone());
            slope = backward.through(output, slope, &leaf)?;
        }
        context::set_dropouts(after);
        backward.through_input(input, slope)?;
        Ok(Loss {
            value: LossValue::Recomputed {
                gradients: backward.gradients.into(),
                loss: value.inner(),
            },
            weight: None,
        })
    }

    fn check_blocks<T: Module<B>>(&self, blocks: &[T]) -> Result<()> {
        let name = short_type_name::<T>();
        for block in blocks {
            if has_statistics(block) {
                return Err(Error::config(format!(
                    "`gradient_checkpointing` is on, and `{name}` has running statistics, which \
                     would see each batch twice; use a normalization without, such as `LayerNorm` \
                     or `GroupNorm`, or leave it out"
                )));
            }
            if self.pass.replicas > 1 && has_dropout(block) {
                return Err(Error::config(format!(
                    "`gradient_checkpointing` is on, and `{name}` has Burn's `Dropout`, whose draws do \
                     not repeat on several devices; use `firebox::nn::Dropout`"
                )));
            }
        }
        Ok(())
    }
}

/// What a pass asks of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PassSettings {
    /// Whether blocks compute their activations again.
    pub(crate) recomputes: bool,
    /// What the loss is multiplied with before its backward pass.
    pub(crate) scale: Option<f64>,
    /// Replicas on this processor or in this process.
    pub(crate) replicas: usize,
}

/// A backward pass in several parts: each ends where the one behind it began.
struct Backward<'a, M: TrainModule> {
    model: &'a M,
    factors: Factors,
    gradients: Gradients,
}

type Inner<M> = <<M as TrainModule>::Backend as AutodiffBackend>::InnerBackend;

/// What the loss changes by with each number of a tensor.
type Slope<M, const D: usize> = Tensor<Inner<M>, D>;

impl<'a, M: TrainModule> Backward<'a, M> {
    fn new(model: &'a M, scale: Option<f64>) -> Self {
        Self {
            model,
            factors: Factors::new(scale),
            gradients: GradientsParams::new().into(),
        }
    }

    fn through_loss<const D: usize>(
        &mut self,
        loss: Tensor<M::Backend, 1>,
        leaf: &Tensor<M::Backend, D>,
    ) -> Result<Slope<M, D>> {
        let [elements] = loss.dims();
        if elements != 1 {
            return Err(Error::user(format!(
                "the loss has {elements} elements; reduce it to one with `.mean()`"
            )));
        }
        self.pass(loss.mul_scalar(self.factors.loss), leaf)
    }

    fn through<const D: usize>(
        &mut self,
        output: Tensor<M::Backend, D>,
        slope: Slope<M, D>,
        leaf: &Tensor<M::Backend, D>,
    ) -> Result<Slope<M, D>> {
        self.pass((output * Tensor::from_inner(slope)).sum(), leaf)
    }

    /// The end: what comes before the blocks.
    fn through_input<const D: usize>(
        &mut self,
        input: Tensor<M::Backend, D>,
        slope: Slope<M, D>,
    ) -> Result<()> {
        // Burn goes back from a tensor only if it depends on something; the input may not.
        let device = input.device();
        let anchor = Tensor::<M::Backend, 1>::zeros([1], &device).require_grad();
        let end = (input * Tensor::from_inner(slope)).sum() + anchor.clone();
        self.pass(end, &anchor).map(drop)
    }

    fn pass<const D: usize>(
        &mut self,
        end: Tensor<M::Backend, 1>,
        leaf: &Tensor<M::Backend, D>,
    ) -> Result<Slope<M, D>> {
        context::meet()?;
        let (model, factor) = (self.model, self.factors.gradients);
        let passed = in_pass(Pass::Backward, || {
            panics::catch(ErrorKind::Backend, || {
                let mut gradients = end.backward();
                let slope = leaf.grad_remove(&mut gradients);
                let gradients = Gradients::collect(model, gradients, factor, false)?;
                Ok((gradients, slope))
            })
        });
        let (gradients, slope) = passed.map_err(|e| e.context("backward pass"))?;
        let before = std::mem::replace(&mut self.gradients, GradientsParams::new().into());
        self.gradients = before.add(model, gradients);
        Ok(slope.unwrap_or_else(|| leaf.clone().inner().zeros_like()))
    }
}
