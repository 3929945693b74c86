#!/usr/bin/env bash
# Trains on the machines of a hostfile with Open MPI: one process on each, with all of its devices.
#
#   ./mpirun.sh hosts.txt ./mnist --max-epochs 20 --resume last
#
# `hosts.txt` has one machine a line, with one slot for each process:
#
#   node1 slots=1
#   node2 slots=1
#
# The program has to be on every machine, at the same path, and ssh from this machine to the others
# has to work without a password.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 HOSTFILE PROGRAM [FLAG]..." >&2
    exit 2
fi
hostfile=$1
program=$2
shift 2

# Lines that name a machine; comments and empty lines do not.
nodes=$(grep -cvE '^[[:space:]]*(#|$)' "$hostfile")

# --map-by node      processes go to the machines in turn, so one to each
# --bind-to none     a process may use every core; by default mpirun gives it a single one
# sigkill_timeout    seconds that processes have to save once mpirun was told to end; 1 by default.
#                    mpirun waits for all of them, twice, at every end that is not the usual one.
#
# mpirun passes no environment on to other machines but what `-x NAME` says: give settings as flags.
exec mpirun --hostfile "$hostfile" -np "$nodes" --map-by node --bind-to none \
    --mca odls_base_sigkill_timeout 20 \
    "$program" --num-nodes "$nodes" --devices all "$@"
