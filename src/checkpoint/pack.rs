//! A run's state on its way to the disk: read from the device at once, encoded when there is time.

use super::folder::Files;
use super::state::RunState;
use super::tensors::{self, Tensors};
use super::{GRADIENTS, MODEL, STATE, TRAINED, optimizer_file};
use crate::accelerators::on_host;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::TrainState;
use crate::module::TrainModule;
use crate::optim::SavedState;
use crate::panics;
use crate::parameters::parameters;
use ciborium::Value;

/// Everything that a checkpoint holds, in the host's memory.
#[derive(Default)]
pub(crate) struct Packed {
    run: RunState,
    model: Tensors,
    /// What is trained, where `model` is an average.
    trained: Option<Tensors>,
    optimizers: Vec<SavedState>,
    gradients: Option<Tensors>,
}

/// Reads everything from the device. What training changes afterwards is not changed here.
pub(crate) fn pack<M: TrainModule>(state: &mut TrainState<M>, mut run: RunState) -> Result<Packed> {
    state.is_whole()?;
    let gradients = state.read_gradients()?;
    let model = state.present()?.clone();
    let model = &model;
    run.model = panics::catch(ErrorKind::User, || Ok(model.save_state()))
        .map_err(|e| e.context("save_state of the model"))?;
    run.optimizers = state.optimizers.save_state();
    run.scaler.clone_from(&state.scaler);
    run.gradients = gradients.as_ref().map(|(weight, _)| *weight);
    let gradients = gradients.map(|(_, mut data)| {
        let of_paths = parameters(model)
            .into_iter()
            .filter_map(|p| Some((p.path, data.remove(&p.id)?)));
        of_paths.collect()
    });
    // Running statistics are brought up to date by this, and by no visit.
    let _ = model.valid();
    let tensors = tensors::of_model(model)?;
    run.averaged = state.averaged_states();
    run.pruned = state.pruned().to_vec();
    let (tensors, trained) = match run.averaged {
        None => (tensors, None),
        Some(_) => (tensors::of_model(state.evaluated())?, Some(tensors)),
    };
    let mut optimizers = state.optimizers.save_optimizers(model);
    // A device's memory has no room for what an optimizer had and what it has.
    if !on_host::<M::Backend>() {
        let read = optimizers.into_iter().map(|saved| {
            let value = saved()?;
            let read: SavedState = Box::new(|| Ok(value));
            Ok(read)
        });
        optimizers = read.collect::<Result<_>>()?;
    }
    Ok(Packed {
        run,
        model: tensors,
        trained,
        optimizers,
        gradients,
    })
}

impl Packed {
    /// The files of the checkpoint.
    pub(super) fn encode(self) -> Result<Files> {
        let mut files = Files {
            epoch: self.run.progress.epoch,
            step: self.run.progress.global_step,
            ..Files::default()
        };
        let mut add = |name: String, content| files.contents.insert(name, content);
        add(MODEL.into(), tensors::encode(self.model)?);
        if let Some(trained) = self.trained {
            add(TRAINED.into(), tensors::encode(trained)?);
        }
        for (index, optimizer) in self.optimizers.into_iter().enumerate() {
            let optimizer = optimizer()?;
            let mut content = Vec::with_capacity(length(&optimizer));
            ciborium::into_writer(&optimizer, &mut content).map_err(|e| {
                Error::new(ErrorKind::Io, "cannot encode the optimizer's state").with_source(e)
            })?;
            add(optimizer_file(index), content);
        }
        if let Some(gradients) = self.gradients {
            add(GRADIENTS.into(), tensors::encode(gradients)?);
        }
        let state = serde_json::to_vec_pretty(&self.run).map_err(|e| {
            Error::new(ErrorKind::Io, "cannot encode the run's state").with_source(e)
        })?;
        add(STATE.into(), state);
        Ok(files)
    }
}

/// About as many bytes as a value takes when it is encoded, so that memory is taken once.
fn length(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len() + 9,
        Value::Text(text) => text.len() + 9,
        Value::Array(items) => items.iter().map(length).sum::<usize>() + 9,
        Value::Map(entries) => {
            let of_entry = |(key, value): &(Value, Value)| length(key) + length(value);
            entries.iter().map(of_entry).sum::<usize>() + 9
        }
        _ => 9,
    }
}
