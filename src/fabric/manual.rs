//! Steps by hand, on one rank or several.

use super::state::rescale;
use super::weights::Weighted;
use super::{Fabric, Part, TrainState, average};
use crate::error::{ErrorKind, Result};
use crate::module::{StepContext, TrainModule};
use crate::optim::{ManualStep, StepOutcome};
use crate::panics;
use crate::precision::{as_given, marked};
use burn::tensor::backend::AutodiffBackend;

impl<B: AutodiffBackend> Fabric<B> {
    /// Runs the model's [`manual_step`](TrainModule::manual_step).
    pub(crate) fn manual_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        batch: M::Batch,
        context: &mut StepContext<B>,
        part: &Part,
    ) -> Result<Vec<StepOutcome>> {
        // The step may fail anywhere in the user's code: the model is kept.
        let model = state.present()?.clone();
        let is_alone = self.group.is_alone();
        let weight = if is_alone {
            1.0
        } else {
            context.samples() as f64
        };
        let first = self.first_weight(weight);
        let mean = |model: &M, group: &str, gradients, rates| {
            if is_alone {
                return Ok((Some(gradients), rates));
            }
            self.announce(part, Some(group))?;
            let mine = Weighted {
                gradients: Some(gradients),
                weight: weight / first,
                first,
            };
            average::mean(model, mine, rates, &self.group)
        };
        let (optimizers, scaler) = (&mut state.optimizers, &mut state.scaler);
        let mut stepper = |model: M, group: &str, loss| {
            let factors = self.factors(weight, first, scaler.as_ref());
            let gradients = self.gradients(&model, loss, factors, scaler.is_some(), true)?;
            // The optimizers compute in the parameters' own format.
            let (model, outcome) = as_given(|| {
                let rates = optimizers.rates();
                let (mean, rates) = mean(&model, group, gradients, rates)?;
                let rules = self.rules_with(scaler.as_ref());
                optimizers.step_group(model, mean, group, rules, &rates)
            })?;
            rescale(scaler.as_mut(), outcome)?;
            Ok((marked(model, &self.format), outcome))
        };
        let mut step = ManualStep {
            stepper: &mut stepper,
            context,
            outcomes: Vec::new(),
        };
        let stepped = panics::catch(ErrorKind::User, || model.manual_step(batch, &mut step))?;
        let outcomes = step.outcomes;
        self.announce(part, None)?;
        let zeros = state.zeros()?;
        state.put(stepped);
        state.keep_zeros(&zeros);
        self.average_manual_step(state, &outcomes)?;
        Ok(outcomes)
    }

    /// Takes the steps that other ranks take by hand on a batch of which this one has no samples.
    pub(crate) fn follow_manual_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        part: &Part,
    ) -> Result<Vec<StepOutcome>> {
        let mut outcomes = Vec::new();
        let zeros = state.zeros()?;
        while let Some(group) = self.announce(part, None)? {
            let model = state.present()?.clone();
            let rates = state.optimizers.rates();
            let none = Weighted {
                gradients: None,
                weight: 0.0,
                first: 1.0,
            };
            let (mean, rates) = average::mean(&model, none, rates, &self.group)?;
            let rules = self.rules_with(state.scaler.as_ref());
            let (stepped, outcome) = state
                .optimizers
                .step_group(model, mean, &group, rules, &rates)?;
            rescale(state.scaler.as_mut(), outcome)?;
            state.put(stepped);
            outcomes.push(outcome);
        }
        state.keep_zeros(&zeros);
        self.average_manual_step(state, &outcomes)?;
        Ok(outcomes)
    }

    /// However many optimizers it has stepped, a step by hand is one.
    fn average_manual_step<M: TrainModule<Backend = B>>(
        &self,
        state: &mut TrainState<M>,
        outcomes: &[StepOutcome],
    ) -> Result<()> {
        let stepped = |outcome: &StepOutcome| matches!(outcome, StepOutcome::Stepped { .. });
        match outcomes.iter().any(stepped) {
            true => as_given(|| self.average_step(state)),
            false => Ok(()),
        }
    }

    /// Tells ranks without samples which group of parameters the others step next, or that there is
    /// no further step; what the others told.
    fn announce(&self, part: &Part, group: Option<&str>) -> Result<Option<String>> {
        if part.is_full {
            return Ok(None);
        }
        let told = self.group.all_gather(group.map(str::to_owned))?;
        Ok(told.into_iter().flatten().next())
    }
}
