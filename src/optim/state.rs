//! What is saved of optimizers and their schedules, and how they go on from it.

use super::erased::SavedState;
use super::set::{OptimizerSet, Scheduler};
use crate::error::{Error, ErrorKind, Result};
use crate::exact::Exact;
use crate::module::TrainModule;
use crate::parameters::parameters;
use burn::tensor::{DType, Device};
use ciborium::Value;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Where every group and schedule is. What the optimizers themselves keep is
/// [`OptimizerSet::save_optimizers`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SetState {
    groups: Vec<GroupState>,
    /// The schedule of all groups that have none of their own.
    schedule: Option<ScheduleState>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct GroupState {
    name: String,
    steps: u64,
    lr: Exact,
    /// Set while the run went on.
    #[serde(default)]
    set_lr: Option<Exact>,
    #[serde(default)]
    rests: bool,
    schedule: Option<ScheduleState>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ScheduleState {
    ticks: u64,
    state: serde_json::Value,
}

impl SetState {
    /// The names of the groups, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.name.as_str())
    }
}

impl Scheduler {
    fn save(&self) -> ScheduleState {
        ScheduleState {
            ticks: self.ticks,
            state: self.schedule.save_state(),
        }
    }

    fn load(&mut self, state: &ScheduleState) -> Result<()> {
        check_count(state.ticks)?;
        self.ticks = state.ticks;
        self.schedule.load_state(&state.state)
    }
}

impl<M: TrainModule> OptimizerSet<M> {
    pub(crate) fn save_state(&self) -> SetState {
        let groups = self.groups.iter().map(|group| GroupState {
            name: group.name.clone(),
            steps: group.steps,
            lr: Exact(group.lr),
            set_lr: group.set_lr.map(Exact),
            rests: group.rests,
            schedule: group.schedule.as_ref().map(Scheduler::save),
        });
        SetState {
            groups: groups.collect(),
            schedule: self.schedule.as_ref().map(Scheduler::save),
        }
    }

    /// What each group's optimizer keeps, in the order of [`SetState::names`]. Parameters go by
    /// their paths: Burn's ids are others in every process.
    pub(crate) fn save_optimizers(&mut self, model: &M) -> Vec<SavedState> {
        if let Some(gathered) = self.gathered.take() {
            return gathered;
        }
        let paths = parameters(model).into_iter();
        let paths = paths.map(|p| (p.id.serialize(), format!("{PARAMETER}{}", p.path)));
        let paths: Arc<HashMap<String, String>> = Arc::new(paths.collect());
        let saved = self.groups.iter().map(|group| {
            let (saved, paths) = (group.optimizer.save(self.format), Arc::clone(&paths));
            let by_path: SavedState = Box::new(move || {
                let mut state = saved()?;
                rename_keys(&mut state, &paths);
                Ok(state)
            });
            by_path
        });
        saved.collect()
    }

    /// Goes on from what was saved.
    ///
    /// # Errors
    /// Other groups, another kind of optimizer or schedule, or a damaged state.
    pub(crate) fn load(
        &mut self,
        model: &M,
        state: &SetState,
        optimizers: Vec<Value>,
        device: &Device<M::Backend>,
    ) -> Result<()> {
        let here: Vec<_> = self.groups.iter().map(|g| g.name.as_str()).collect();
        let saved: Vec<_> = state.names().collect();
        if here != saved || optimizers.len() != saved.len() {
            return Err(Error::config(format!(
                "the checkpoint has the parameter groups `{}`, and this run has `{}`; resume with \
                 the same groups, or start from the weights alone",
                saved.join("`, `"),
                here.join("`, `")
            )));
        }
        let ids = parameters(model).into_iter();
        let ids: HashMap<String, String> = ids
            .map(|p| (format!("{PARAMETER}{}", p.path), p.id.serialize()))
            .collect();
        let groups = self.groups.iter_mut().zip(&state.groups).zip(optimizers);
        for ((group, state), mut optimizer) in groups {
            let place = |e: Error| e.context(format!("optimizer of group `{}`", state.name));
            check_count(state.steps).map_err(place)?;
            check_tensors(&optimizer).map_err(place)?;
            rename_keys(&mut optimizer, &ids);
            group
                .optimizer
                .load(&optimizer, device, self.format)
                .map_err(place)?;
            load_schedule(group.schedule.as_mut(), state.schedule.as_ref()).map_err(place)?;
            group.steps = state.steps;
            group.lr = state.lr.0;
            group.set_lr = state.set_lr.map(|Exact(lr)| lr);
            group.rests = state.rests;
        }
        load_schedule(self.schedule.as_mut(), state.schedule.as_ref())
    }
}

fn load_schedule(here: Option<&mut Scheduler>, saved: Option<&ScheduleState>) -> Result<()> {
    match (here, saved) {
        (Some(here), Some(saved)) => here.load(saved),
        (None, None) => Ok(()),
        (here, _) => {
            let has = |yes: bool| if yes { "has" } else { "has not" };
            let here = here.is_some();
            Err(Error::config(format!(
                "the checkpoint {} a learning-rate schedule where this run {}; resume with the \
                 schedule that the run had",
                has(!here),
                has(here)
            )))
        }
    }
}

/// Some schedules count up to where they were: no run has come so far, and none is to hang.
fn check_count(count: u64) -> Result<()> {
    match count {
        0..=MAX_COUNT => Ok(()),
        _ => Err(corrupt(&format!(
            "{count} steps are more than any run takes"
        ))),
    }
}

/// More steps than any run takes.
pub(super) const MAX_COUNT: u64 = 10_000_000_000;

/// What a parameter's path begins with where it is a key, so that no field's name is taken for one.
pub(super) const PARAMETER: &str = "param:";

/// Renames the keys that are in `names`, at any depth, and sorts what has such keys.
fn rename_keys(value: &mut Value, names: &HashMap<String, String>) {
    match value {
        Value::Map(entries) => {
            let mut renamed = false;
            for (key, value) in entries.iter_mut() {
                if let Value::Text(text) = key
                    && let Some(name) = names.get(text)
                {
                    text.clone_from(name);
                    renamed = true;
                }
                rename_keys(value, names);
            }
            if renamed {
                entries.sort_by(|(a, _), (b, _)| a.as_text().cmp(&b.as_text()));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename_keys(item, names)),
        _ => {}
    }
}

/// Checks that every tensor has as many bytes as its shape says, as Burn itself does not.
fn check_tensors(value: &Value) -> Result<()> {
    match value {
        Value::Map(entries) => {
            check_tensor(entries)?;
            entries.iter().try_for_each(|(key, value)| match key {
                Value::Text(_) | Value::Integer(_) => check_tensors(value),
                _ => Err(corrupt("a key is neither a name nor a number")),
            })
        }
        Value::Array(items) => items.iter().try_for_each(check_tensors),
        // Reading looks through tags; nothing that was saved has any.
        Value::Tag(..) => Err(corrupt("a value has a tag")),
        _ => Ok(()),
    }
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

fn check_tensor(fields: &[(Value, Value)]) -> Result<()> {
    let field = |name: &str| {
        let mut fields = fields.iter();
        fields.find_map(|(key, value)| (key.as_text() == Some(name)).then_some(value))
    };
    let (Some(bytes), Some(shape), Some(dtype)) = (field("bytes"), field("shape"), field("dtype"))
    else {
        return Ok(());
    };
    let length = || {
        let size = dtype.deserialized::<DType>().ok()?.size();
        let sizes = shape
            .as_array()?
            .iter()
            .map(|n| n.deserialized::<usize>().ok());
        sizes
            .into_iter()
            .try_fold(size, |product, n| product.checked_mul(n?))
    };
    match (bytes.as_bytes(), length()) {
        (Some(bytes), Some(length)) if bytes.len() == length && length > 0 => Ok(()),
        // A tensor without entries, of a type whose entries have a size.
        (Some(bytes), Some(0)) if bytes.is_empty() => Ok(()),
        _ => Err(corrupt("a tensor has not as many bytes as its shape says")),
    }
}
