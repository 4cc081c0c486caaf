#!/usr/bin/env bash
# A training run on Slurm, written by `maskwright launch slurm`. It may be read, edited and submitted again with sbatch.
# This script prepares the environment and becomes the supervisor (launchers/slurm/supervise.py), which runs DeepSpeed's
# launcher on each node through srun, watches the run's status, and has the job queued again when it is to go on.

# One task a node, which starts that node's processes. Slurm may start the job again, and its log goes on. Before the
# time limit Slurm tells the supervisor (B:), and nothing else, to save and stop.
@{directives}

set -e
# Modules, conda and the like; not yet under `set -u`, which many of them do not bear.
@{setup}
set -uo pipefail

cd @{working_dir}
@{environment}
exec @{supervisor}
