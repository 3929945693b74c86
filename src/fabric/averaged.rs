//! The average of a model's weights over the steps of a run.

use super::{Fabric, Part, TrainState, average, replica};
use crate::config::WeightAveraging;
use crate::error::Result;
use crate::module::{StepContext, TrainModule};
use crate::precision::{cast, marked};
use burn::module::{ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Device, Tensor};

/// A model whose weights are an average.
pub(super) struct Averaged<M> {
    model: M,
    /// How many states of the model have gone into it.
    count: u64,
}

impl<M: TrainModule> Averaged<M> {
    /// The same average on another device.
    pub(super) fn replica(&self, device: &Device<M::Backend>) -> Result<Self> {
        Ok(Self {
            model: replica(&self.model, device)?,
            count: self.count,
        })
    }
}

impl<M: TrainModule> TrainState<M> {
    /// The model as it is validated and given back: the average, if there is one.
    pub(crate) fn evaluated(&self) -> &M {
        match &self.averaged {
            Some(averaged) => &averaged.model,
            None => self.model(),
        }
    }

    /// The average of the weights so far, where the config asks for one.
    pub fn average(&self) -> Option<&M> {
        self.averaged.as_ref().map(|averaged| &averaged.model)
    }

    /// Ends training; the model as it is evaluated.
    pub(crate) fn into_evaluated(mut self) -> Result<M> {
        match self.averaged.take() {
            Some(averaged) => Ok(averaged.model),
            None => self.into_model(),
        }
    }

    /// How many states of the model the average has, if there is one.
    pub(crate) fn averaged_states(&self) -> Option<u64> {
        self.averaged.as_ref().map(|averaged| averaged.count)
    }

    /// Goes on with an average of so many states.
    pub(crate) fn resume_average(&mut self, model: M, count: u64) {
        let model = marked(in_32_bits(model), &self.format);
        self.averaged = Some(Averaged { model, count });
    }

    /// A model to put a saved average into.
    pub(crate) fn average_to_load(&self) -> Result<M> {
        let model = self.present()?;
        let device = model.devices().into_iter().next().unwrap_or_default();
        replica(model, &device).map(in_32_bits)
    }

    /// Has no average any more.
    pub(crate) fn forget_average(&mut self) {
        self.averaged = None;
    }

    /// Changes the average, if there is one.
    pub(super) fn map_average(&mut self, change: impl FnOnce(M) -> M) {
        if let Some(Averaged { model, count }) = self.averaged.take() {
            let model = marked(change(model), &self.format);
            self.averaged = Some(Averaged { model, count });
        }
    }

    /// average = keep · average + (1 - keep) · weights. The first average is the weights themselves.
    fn average_in(&mut self, keep: impl Fn(u64) -> f64) -> Result<()> {
        // Running statistics are brought up to date by this, and by no visit.
        let _ = self.present()?.valid();
        let averaged = match self.averaged.take() {
            None => Averaged {
                model: self.average_to_load()?,
                count: 1,
            },
            Some(Averaged { model, count }) => {
                let mut now = Weights(GradientsParams::new());
                self.present()?.visit(&mut now);
                let keep = keep(count);
                Averaged {
                    model: model.map(&mut Blend { now: now.0, keep }),
                    count: count.saturating_add(1),
                }
            }
        };
        self.averaged = Some(Averaged {
            model: marked(averaged.model, &self.format),
            ..averaged
        });
        Ok(())
    }
}

impl<B: AutodiffBackend> Fabric<B> {
    /// Whether weights are averaged.
    pub(crate) fn averages(&self) -> bool {
        self.averaging.is_some()
    }

    /// Takes the weights after an optimizer step into the average, if that goes by steps.
    pub(super) fn average_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        match self.averaging {
            Some(WeightAveraging::Ema { decay }) => state.average_in(|_| decay),
            _ => Ok(()),
        }
    }

    /// Takes the weights at the end of an epoch into the average, if that goes by epochs.
    pub(crate) fn average_epoch<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        state.average_in(|count| count as f64 / (count as f64 + 1.0))
    }

    /// Runs the averaged model over a training batch, for its running statistics: those of the
    /// states that went into it are not its own.
    pub(crate) fn refresh_statistics<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        value: M::Batch,
        mut context: StepContext<B>,
        epoch: u64,
        part: &Part,
    ) -> Result<()> {
        // Burn keeps a graph until the next backward pass, and here comes none. Running statistics are
        // shared with the copy.
        let model = state.evaluated().clone().no_grad();
        let pass = || model.training_step(value, &mut context).map(drop);
        self.in_part(epoch, part, pass)
    }

    /// Gives the averaged models of all ranks the running statistics of the first.
    pub(crate) fn settle_average<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
    ) -> Result<()> {
        let Some(averaged) = &state.averaged else {
            return Ok(());
        };
        let Some(pieces) = average::first_statistics(&averaged.model, &self.group)? else {
            return Ok(());
        };
        if let Some(Averaged { model, count }) = state.averaged.take() {
            let model = average::with_parameters(model, pieces)?;
            let model = marked(model, &state.format);
            state.averaged = Some(Averaged { model, count });
        }
        Ok(())
    }
}

/// Every float of a model, by its parameter.
struct Weights(GradientsParams);

impl<B: AutodiffBackend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.register(param.id, param.val().inner());
    }
}

struct Blend {
    now: GradientsParams,
    keep: f64,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Blend {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        // A parameter that a module holds twice comes twice.
        let Some(now) = self.now.get::<B::InnerBackend, D>(param.id) else {
            return param;
        };
        let keep = self.keep;
        param.map(|old| {
            let requires = old.is_require_grad();
            let now = now.cast(old.dtype()).mul_scalar(1.0 - keep);
            let new = Tensor::from_inner(old.inner().mul_scalar(keep) + now);
            if requires { new.require_grad() } else { new }
        })
    }
}

/// 16 bits do not hold what one step adds to an average.
fn in_32_bits<M: TrainModule>(model: M) -> M {
    cast(model, |dtype| match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        wide => wide,
    })
}
