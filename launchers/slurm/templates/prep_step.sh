#!/usr/bin/env bash
# A step of a preparation after a job array, written by `maskwright launch prep`. You may edit it and submit it again
# with sbatch.

@{directives}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=@{cpus}
# Slurm may restart the job after a lost node or a preemption. The log is continued.
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

echo "job $SLURM_JOB_ID (start $((${SLURM_RESTART_COUNT:-0} + 1))) on $(hostname): prep @{command}"
cd @{working_dir}
exec @{python} -m launchers.cli prep @{command} @{out} @{workers}
