//! SLURM: a job that is told to make room saves, and puts itself back into the queue.
//!
//! With `#SBATCH --requeue --signal=USR1@120` SLURM sends SIGUSR1 two minutes before the job's time
//! is up. The run then finishes its step, saves, and asks `scontrol` to requeue the job; when the job
//! starts again, it resumes from there.

use crate::error::{Error, ErrorKind, Result};
use std::process::Command;

/// The job this process is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// As `scontrol` takes it: `7`, or `5_3` for a task of an array.
    pub(crate) id: String,
    /// Whether it is one of an array's tasks, which run side by side.
    pub(crate) is_of_array: bool,
    /// Whether it has been started before.
    pub(crate) is_requeued: bool,
    is_first_process: bool,
}

impl Job {
    /// The job, if SLURM has started this process.
    pub(crate) fn current() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let id = variable("SLURM_JOB_ID")?;
        let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
        let restarts = variable("SLURM_RESTART_COUNT").and_then(|count| count.parse::<u64>().ok());
        Some(Self {
            is_of_array: array.is_some(),
            id: array.map_or(id, |(job, task)| format!("{job}_{task}")),
            is_requeued: restarts.is_some_and(|count| count > 0),
            is_first_process: variable("SLURM_PROCID").is_none_or(|rank| rank == "0"),
        })
    }

    /// Puts the job back into the queue. One of its processes does so for all.
    ///
    /// # Errors
    /// `scontrol` is missing or refuses.
    pub(crate) fn requeue(&self) -> Result<()> {
        if !self.is_first_process {
            return Ok(());
        }
        let command = format!("`scontrol requeue {}`", self.id);
        let failed = |why: String| {
            let what = format!("cannot requeue the job: {command}: {why}; what was saved is there");
            Error::new(ErrorKind::Io, what)
        };
        let output = Command::new("scontrol")
            .args(["requeue", &self.id])
            .output();
        let output = output.map_err(|e| failed(e.to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(failed(format!("{}, {}", output.status, said.trim())))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> Option<Job> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        Job::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_job_and_a_task_of_an_array() {
        assert_eq!(job(&[("SLURM_PROCID", "0")]), None);
        let single = job(&[("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "0")]).unwrap();
        assert_eq!(single.id, "7");
        assert!(!single.is_of_array && !single.is_requeued && single.is_first_process);
        let task = job(&[
            ("SLURM_JOB_ID", "9"),
            ("SLURM_ARRAY_JOB_ID", "5"),
            ("SLURM_ARRAY_TASK_ID", "3"),
            ("SLURM_RESTART_COUNT", "2"),
            ("SLURM_PROCID", "1"),
        ]);
        let task = task.unwrap();
        assert_eq!(task.id, "5_3");
        assert!(task.is_of_array && task.is_requeued && !task.is_first_process);
    }
}
