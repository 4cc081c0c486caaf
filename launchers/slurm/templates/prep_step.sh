#!/usr/bin/env bash
# The step of a preparation after an array's end, written by `maskwright launch prep`. It may be read, edited and
# submitted again with sbatch.

@{directives}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=@{cpus}
# Slurm may start the job again (a lost node, a preemption); the log goes on.
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

echo "job $SLURM_JOB_ID (start $((${SLURM_RESTART_COUNT:-0} + 1))) on $(hostname): prep @{command}"
cd @{working_dir}
exec @{python} -m launchers.cli prep @{command} @{out} @{workers}
