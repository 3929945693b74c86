//! What a model is made of, as far as it matters to replicas of it.

use super::{Fabric, TrainState};
use crate::error::Result;
use crate::module::TrainModule;
use crate::output::say;
use crate::parameters::{mentions_dropout, written};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

/// A look at a model.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// How many numbers its float parameters have.
    pub(crate) parameters: usize,
    /// Whether it has layers that use each parameter many times for a sample: convolutions,
    /// attention.
    pub(crate) works_hard: bool,
    /// Burn's layers in it that do not give on several devices what they give on one: they draw from
    /// a generator that all replicas share, or take statistics over the part of a batch that a
    /// replica has.
    pub(crate) layers_of_one_device: Vec<&'static str>,
}

impl Look {
    pub(crate) fn at<B: Backend, M: Module<B>>(model: &M) -> Self {
        let mut look = Self::default();
        model.visit(&mut look);
        let text = written(model);
        if mentions_dropout(&text) {
            look.layers_of_one_device.push("Dropout");
        }
        look.works_hard |= text.contains("Attention {");
        look
    }
}

impl<B: Backend> ModuleVisitor<B> for Look {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.parameters += param.val().shape().num_elements();
        // The kernel of a convolution has channels in, channels out, and a length or more.
        self.works_hard |= D >= 3;
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        let layer = "BatchNorm";
        let is_burns = (container, name) == ("Struct:BatchNorm", "running_mean");
        if is_burns && !self.layers_of_one_device.contains(&layer) {
            self.layers_of_one_device.push(layer);
        }
    }
}

impl<B: AutodiffBackend> Fabric<B> {
    /// Says so if the model has layers that give something else on several devices.
    pub(crate) fn warn_of_layers<M: TrainModule<Backend = B>>(
        &self,
        state: &TrainState<M>,
    ) -> Result<()> {
        for layer in Look::at(state.present()?).layers_of_one_device {
            let (what, instead) = match layer {
                "Dropout" => ("draws other masks in every run", "Dropout"),
                _ => (
                    "normalizes each device's part of a batch by itself",
                    "SyncBatchNorm",
                ),
            };
            say!(
                "warning: on several devices Burn's `{layer}` {what}; `firebox::nn::{instead}` \
                 gives what one device does"
            );
        }
        Ok(())
    }
}
