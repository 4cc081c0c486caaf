#!/usr/bin/env bash
# A training run on Slurm, written by `maskwright launch slurm`. It may be read, edited and submitted again with sbatch.
# This script prepares the environment and becomes the supervisor (launchers/slurm/supervise.py), which runs DeepSpeed's
# launcher on each node through srun, watches the run's status, and has the job queued again when it is to go on.

@{directives}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@{cores}
# Slurm may start the job again (a lost node, a preemption, the supervisor's request); the log goes on.
#SBATCH --requeue
#SBATCH --open-mode=append
# 120 s before the time limit, tell the supervisor (B:) and nothing else.
#SBATCH --signal=B:USR1@@120

set -euo pipefail

cd @{working_dir}
# The Python environment that submitted the job; DeepSpeed builds its extensions with the ninja in it.
export PATH=@{bin_dir}:$PATH
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-@{threads}}
@{accelerator}
exec @{python} -m launchers.slurm.supervise @{job}
