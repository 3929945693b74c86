//! What all ranks have logged, as one.

use super::log::{LogBook, LogBookState, MergedState};
use super::state::MetricState;
use crate::error::{Error, Result};
use burn::tensor::backend::Backend;

/// What a rank tells the others: the statistics under each name, and whether it has the metric too,
/// or no more than what a checkpoint kept of it.
pub(crate) type Told = Vec<(MergedState, bool)>;

impl<B: Backend> LogBook<B> {
    /// The statistics of all ranks, merged in the order of the ranks; the same on all of them.
    /// `gather` gives each rank what all have to tell.
    ///
    /// # Errors
    /// What one rank has logged does not fit what another has logged under the same name.
    pub(crate) fn over_ranks(
        &mut self,
        rank: usize,
        gather: impl Fn(Told) -> Result<Vec<Told>>,
    ) -> Result<LogBookState> {
        let mine = self.save()?;
        let told = mine.merged.into_iter().map(|mut merged| {
            // Ranks count their groups from where they began.
            merged.group = merged.group.filter(|(of, _)| *of == mine.group);
            let knows = self.metric(&merged.name).is_some();
            (merged, knows)
        });
        let told = gather(told.collect())?;
        let names = names(&told);
        let owned = names.iter().filter(|name| owner(&told, name) == Some(rank));
        let owned = owned.map(|name| Ok((self.merged(name, &told)?, true)));
        let merged = gather(owned.collect::<Result<_>>()?)?;
        let of_name = |name: &&str| {
            let mut merged = find(merged.iter().flatten(), name)?.0.clone();
            merged.group = merged.group.map(|(_, state)| (mine.group, state));
            Some(merged)
        };
        Ok(LogBookState {
            merged: names.iter().filter_map(of_name).collect(),
            group: mine.group,
        })
    }

    /// The statistics of all ranks under a name.
    fn merged(&self, name: &str, told: &[Told]) -> Result<MergedState> {
        let place = |e: Error| e.context(format!("`{name}`"));
        let mut all = told.iter().filter_map(|told| Some(&find(told, name)?.0));
        let Some(metric) = self.metric(name) else {
            // This rank alone has it, from a checkpoint.
            let merged = all.next().cloned();
            return merged.ok_or_else(|| place(Error::user("was logged by no rank")));
        };
        let mut epoch = MetricState::new(metric.clone());
        let mut current = MetricState::new(metric);
        for merged in all {
            epoch.merge_values(&merged.epoch.state()).map_err(place)?;
            if let Some((_, state)) = &merged.group {
                current.merge_values(&state.state()).map_err(place)?;
            }
        }
        epoch.compute().map_err(place)?;
        let is_logged = !current.state().is_empty();
        Ok(MergedState {
            name: name.to_owned(),
            epoch: epoch.save(),
            group: is_logged.then(|| (0, current.save())),
        })
    }
}

fn find<'a>(
    told: impl IntoIterator<Item = &'a (MergedState, bool)>,
    name: &str,
) -> Option<&'a (MergedState, bool)> {
    told.into_iter().find(|(merged, _)| merged.name == name)
}

/// Every name, in the order of the ranks and of logging.
fn names(told: &[Told]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for (merged, _) in told.iter().flatten() {
        if !names.contains(&merged.name.as_str()) {
            names.push(&merged.name);
        }
    }
    names
}

/// The rank that merges a name: the first that has its metric.
fn owner(told: &[Told], name: &str) -> Option<usize> {
    let knows = |told: &Told| find(told, name).is_some_and(|(_, knows)| *knows);
    let has = |told: &Told| find(told, name).is_some();
    told.iter()
        .position(knows)
        .or_else(|| told.iter().position(has))
}
