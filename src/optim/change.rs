//! What changes of a run's optimizers while it goes on.

use super::group::matches;
use super::set::{Group, OptimizerSet, check_lr};
use crate::error::{Error, Result};
use crate::module::TrainModule;

impl<M: TrainModule> OptimizerSet<M> {
    /// Whether [`set_rate`](Self::set_rate) can be done.
    pub(crate) fn check_rate(&self, groups: &str, lr: f64) -> Result<()> {
        self.check_pattern(groups)?;
        check_lr(groups, Some(lr)).map(drop)
    }

    /// Sets the base learning rate of the groups that a pattern matches; schedules go on from it.
    pub(crate) fn set_rate(&mut self, groups: &str, lr: f64) -> Result<()> {
        self.check_rate(groups, lr)?;
        self.matching(groups)
            .for_each(|group| group.set_lr = Some(lr));
        Ok(())
    }

    /// Whether [`freeze`](Self::freeze) can be done.
    pub(crate) fn check_freeze(&self, groups: &str, frozen: bool) -> Result<()> {
        self.check_pattern(groups)?;
        let rests = |group: &Group<M>| match matches(groups, &group.name) {
            true => frozen,
            false => group.rests,
        };
        match self.groups.iter().all(rests) {
            true => Err(Error::config(format!(
                "without parameter group `{groups}` there is nothing left to train; leave at least \
                 one group"
            ))),
            false => Ok(()),
        }
    }

    /// Leaves the parameters of the groups that a pattern matches as they are, or no longer.
    pub(crate) fn freeze(&mut self, groups: &str, frozen: bool) -> Result<()> {
        self.check_freeze(groups, frozen)?;
        self.matching(groups).for_each(|group| group.rests = frozen);
        Ok(())
    }

    fn matching(&mut self, pattern: &str) -> impl Iterator<Item = &mut Group<M>> {
        let groups = self.groups.iter_mut();
        groups.filter(move |group| matches(pattern, &group.name))
    }

    fn check_pattern(&self, pattern: &str) -> Result<()> {
        if self.groups.iter().any(|g| matches(pattern, &g.name)) {
            return Ok(());
        }
        let names: Vec<_> = self.groups.iter().map(|g| g.name.as_str()).collect();
        Err(Error::config(format!(
            "there is no parameter group `{pattern}`; there is `{}`",
            names.join("`, `")
        )))
    }
}
