//! Optimizers whose state is divided over ranks: each keeps the moments of its own parameters.

use super::erased::SavedState;
use super::gradients;
use super::set::{OptimizerSet, Update};
use super::state::PARAMETER;
use crate::error::{Error, ErrorKind, Result};
use crate::module::TrainModule;
use burn::module::ParamId;
use burn::tensor::Device;
use ciborium::Value;
use std::collections::{HashMap, HashSet};

impl<M: TrainModule> OptimizerSet<M> {
    /// The part of an update that is of these parameters.
    pub(crate) fn part_of(&self, model: &M, update: Update, own: &HashSet<ParamId>) -> Update {
        let own: HashMap<ParamId, usize> = own.iter().map(|id| (*id, 0)).collect();
        let groups = update.groups.into_iter().map(|(index, gradients)| {
            let mut split = gradients::split(model, gradients, &own, 1);
            (index, split.pop().unwrap_or_default())
        });
        Update {
            groups: groups.collect(),
            grad_norm: update.grad_norm,
            norms_of_parts: update.norms_of_parts,
        }
    }

    /// Forgets what the optimizers keep of other parameters than these.
    pub(crate) fn forget_others(
        &mut self,
        own: &HashSet<ParamId>,
        all: &HashSet<ParamId>,
        device: &Device<M::Backend>,
    ) -> Result<()> {
        let others: HashSet<String> = all.difference(own).map(|id| id.serialize()).collect();
        for group in &mut self.groups {
            let mut state = group.optimizer.save(self.format)()?;
            remove_keys(&mut state, &others);
            group.optimizer.load(&state, device, self.format)?;
        }
        Ok(())
    }

    /// What the optimizers of this rank keep, as bytes for [`gather`](Self::gather).
    pub(crate) fn own_states(&mut self, model: &M) -> Result<Vec<u8>> {
        // Of a checkpoint that was never written.
        self.gathered = None;
        let states = self.save_optimizers(model).into_iter();
        let states = states.map(|saved| saved()).collect::<Result<Vec<_>>>()?;
        let mut bytes = Vec::new();
        ciborium::into_writer(&states, &mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    /// Takes what the optimizers of all ranks keep, for the next checkpoint.
    pub(crate) fn gather(&mut self, ranks: &[Vec<u8>]) -> Result<()> {
        let mut gathered: Option<Vec<Value>> = None;
        for bytes in ranks {
            let states: Vec<Value> = ciborium::from_reader(bytes.as_slice()).map_err(unreadable)?;
            gathered = Some(match gathered {
                None => states,
                Some(all) => all
                    .into_iter()
                    .zip(states)
                    .map(|(a, b)| merged(a, b))
                    .collect(),
            });
        }
        let saved = gathered.unwrap_or_default().into_iter().map(|state| {
            let saved: SavedState = Box::new(move || Ok(state));
            saved
        });
        self.gathered = Some(saved.collect());
        Ok(())
    }

    /// Whether what all ranks keep is here.
    pub(crate) fn is_gathered(&self) -> bool {
        self.gathered.is_some()
    }

    /// Begins anew with all optimizers, as if none had ever stepped; schedules go on.
    pub(crate) fn begin_anew(&mut self) {
        for group in &mut self.groups {
            group.optimizer = group.fresh.boxed_clone();
        }
    }
}

fn unreadable<E: std::error::Error + Send + Sync + 'static>(error: E) -> Error {
    Error::new(
        ErrorKind::Aborted,
        "ranks cannot exchange their optimizers' state",
    )
    .with_source(error)
}

/// A state without the entries of these keys.
pub(super) fn without_keys(mut state: Value, keys: &HashSet<String>) -> Value {
    remove_keys(&mut state, keys);
    state
}

/// Removes entries with these keys, at any depth.
fn remove_keys(value: &mut Value, keys: &HashSet<String>) {
    match value {
        Value::Map(entries) => {
            entries.retain(|(key, _)| key.as_text().is_none_or(|key| !keys.contains(key)));
            entries
                .iter_mut()
                .for_each(|(_, value)| remove_keys(value, keys));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove_keys(item, keys)),
        _ => {}
    }
}

/// Two states of the same optimizer over different parameters, as one.
pub(super) fn merged(a: Value, b: Value) -> Value {
    let (Value::Map(mut a), Value::Map(b)) = (a.clone(), b) else {
        return a;
    };
    for (key, value) in b {
        let is_parameter = key.as_text().is_some_and(|key| key.starts_with(PARAMETER));
        match a.iter_mut().find(|(other, _)| *other == key) {
            Some((_, there)) if !is_parameter => *there = merged(there.clone(), value),
            Some(_) => {}
            None => a.push((key, value)),
        }
    }
    if a.iter()
        .any(|(key, _)| key.as_text().is_some_and(|key| key.starts_with(PARAMETER)))
    {
        a.sort_by(|(a, _), (b, _)| a.as_text().cmp(&b.as_text()));
    }
    Value::Map(a)
}
