#!/usr/bin/env bash
# Trains on two nodes of a SLURM cluster: one process on each, with all of its GPUs.
#
#   sbatch slurm.sh ./mnist --max-epochs 20
#
#SBATCH --job-name=firebox
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
# GPUs of the node, not of the task: processes that see only a GPU of their own cannot tell how many
# the node has.
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
# Two minutes before the time is up every process gets SIGUSR1: the run finishes its step, saves,
# and puts the job back into the queue. A job that starts again resumes; no flag is needed.
#SBATCH --signal=USR1@120
#SBATCH --requeue
# What the starts print comes one after another.
#SBATCH --open-mode=append
#SBATCH --output=firebox-%j.log
set -euo pipefail

if [ $# -lt 1 ]; then
    echo "usage: sbatch $0 PROGRAM [FLAG]..." >&2
    exit 2
fi
program=$1
shift

# --mpi=pmix           how the processes find one another; `srun --mpi=list` shows what there is
# --cpus-per-task      srun takes it from sbatch no longer by itself
# --kill-on-bad-exit   when a process is killed, the others are ended, too
#
# The runs' folder has to be on a file system that all nodes see: a requeued job may start elsewhere.
exec srun --mpi=pmix --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    "$program" --num-nodes "$SLURM_JOB_NUM_NODES" --devices all \
    --run-dir "$SLURM_SUBMIT_DIR/runs" "$@"
