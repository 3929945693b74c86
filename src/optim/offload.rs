//! An optimizer whose state is in the host's memory between two steps.

use super::erased::{ErasedOptimizer, SavedState};
use super::gradients;
use super::set::OptimizerSet;
use super::shards::{merged, without_keys};
use crate::error::Result;
use crate::module::TrainModule;
use crate::parameters::{Parameter, parameters};
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType};
use ciborium::Value;
use std::collections::{HashMap, HashSet};

/// An optimizer that steps a part of the parameters at a time, and keeps what it knows of each part
/// in the host's memory meanwhile: the device holds the moments of one part only.
///
/// It relies on optimizers keeping what they know parameter by parameter, as all of Burn's do.
struct Offloaded<M: TrainModule> {
    /// As it is before its first step.
    fresh: Box<dyn ErasedOptimizer<M>>,
    part_of: HashMap<ParamId, usize>,
    parts: Vec<Option<Value>>,
    device: Device<M::Backend>,
    format: FloatDType,
}

/// Parts that the parameters are divided into, unless one of them is larger.
const PARTS: usize = 8;

impl<M: TrainModule> OptimizerSet<M> {
    /// Keeps the optimizers' state in the host's memory from now on.
    pub(crate) fn offload(&mut self, model: &M, device: &Device<M::Backend>) {
        let parameters = parameters(model);
        for group in &mut self.groups {
            let offloaded = Offloaded {
                fresh: group.fresh.boxed_clone(),
                part_of: divide(&parameters),
                parts: Vec::new(),
                device: device.clone(),
                format: self.format,
            };
            group.fresh = offloaded.boxed_clone();
            group.optimizer = Box::new(offloaded);
        }
    }
}

/// Which part each parameter is in, in the order in which the model is visited.
fn divide(parameters: &[Parameter]) -> HashMap<ParamId, usize> {
    let numbers = |p: &Parameter| p.shape.iter().product::<usize>();
    let most = parameters.iter().map(numbers).sum::<usize>() / PARTS;
    let (mut part, mut filled) = (0, 0);
    let mut part_of = HashMap::new();
    for parameter in parameters {
        if filled > 0 && filled + numbers(parameter) > most {
            (part, filled) = (part + 1, 0);
        }
        filled += numbers(parameter);
        part_of.entry(parameter.id).or_insert(part);
    }
    part_of
}

impl<M: TrainModule> Offloaded<M> {
    fn parts(&self) -> usize {
        self.part_of.values().max().map_or(0, |last| last + 1)
    }

    /// The optimizer of a part, with what it knows.
    fn of_part(&self, part: usize) -> Result<Box<dyn ErasedOptimizer<M>>> {
        let mut optimizer = self.fresh.boxed_clone();
        if let Some(Some(state)) = self.parts.get(part) {
            optimizer.load(state, &self.device, self.format)?;
        }
        Ok(optimizer)
    }

    fn step_part(
        &mut self,
        part: usize,
        lr: f64,
        model: M,
        gradients: GradientsParams,
    ) -> Result<M> {
        let mut optimizer = self.of_part(part)?;
        let model = optimizer.step(lr, model, gradients)?;
        let state = optimizer.save(self.format)()?;
        if let Some(known) = self.parts.get_mut(part) {
            *known = Some(state);
        }
        Ok(model)
    }
}

impl<M: TrainModule> ErasedOptimizer<M> for Offloaded<M> {
    fn step(&mut self, lr: f64, mut model: M, gradients: GradientsParams) -> Result<M> {
        self.parts.resize_with(self.parts(), || None);
        let split = gradients::split(&model, gradients, &self.part_of, self.parts());
        for (part, gradients) in split.into_iter().enumerate() {
            if !gradients.is_empty() {
                model = self.step_part(part, lr, model, gradients)?;
            }
        }
        Ok(model)
    }

    fn boxed_clone(&self) -> Box<dyn ErasedOptimizer<M>> {
        Box::new(Self {
            fresh: self.fresh.boxed_clone(),
            part_of: self.part_of.clone(),
            parts: self.parts.clone(),
            device: self.device.clone(),
            format: self.format,
        })
    }

    fn save(&self, format: FloatDType) -> SavedState {
        let known: Vec<Value> = self.parts.iter().flatten().cloned().collect();
        let fresh = self.fresh.save(format);
        Box::new(move || match known.into_iter().reduce(merged) {
            Some(state) => Ok(state),
            None => fresh(),
        })
    }

    fn load(
        &mut self,
        state: &Value,
        device: &Device<M::Backend>,
        format: FloatDType,
    ) -> Result<()> {
        self.device.clone_from(device);
        let part = |part| {
            let others = self.part_of.iter().filter(|(_, of)| **of != part);
            let others: HashSet<String> = others.map(|(id, _)| id.serialize()).collect();
            let mut optimizer = self.fresh.boxed_clone();
            // What is no state of this kind of optimizer is found here.
            optimizer.load(&without_keys(state.clone(), &others), device, format)?;
            optimizer.save(format)().map(Some)
        };
        self.parts = (0..self.parts()).map(part).collect::<Result<_>>()?;
        Ok(())
    }
}
