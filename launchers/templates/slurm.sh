#!/usr/bin/env bash
# A training run on Slurm, written by `maskwright launch slurm`. It may be read, edited and submitted again with sbatch.
# This script prepares the environment and becomes the supervisor (launchers/slurm/supervise.py). The supervisor starts
# the training processes with srun, watches the run's status, and queues the job again if it must continue.

# One task is one training process. Slurm may start the job again; it then appends to the log. Before the time limit
# Slurm signals the supervisor only (B:), which tells the run to save and stop.
@{directives}

set -e
# Modules, conda and the like; not yet under `set -u`, which many of them do not bear.
@{setup}
set -uo pipefail

cd @{working_dir}
@{environment}
exec @{supervisor}
