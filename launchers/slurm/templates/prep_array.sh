#!/usr/bin/env bash
# A job array of a preparation, written by `maskwright launch prep`: each element runs the tasks on its line of the list.
# You may edit it and submit it again: sbatch --array=FIRST-LAST SCRIPT [LINES_TO_SKIP]

@{directives}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=@{cpus}
# Slurm may restart an element after a lost node or a preemption. Finished tasks are kept, and the log is continued.
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

out=@{out}
python=@{python}
list=@{list}

line=$((${1:-0} + SLURM_ARRAY_TASK_ID))
tasks=()
read -ra tasks < <(sed -n "${line}p" "$list") || true
if [ ${#tasks[@@]} -eq 0 ]; then
  echo "error: $list has no line $line" >&2
  exit 1
fi
echo "job ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID (start $((${SLURM_RESTART_COUNT:-0} + 1))) on $(hostname):" \
  "prep @{command} ${tasks[*]}"

cd @{working_dir}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one process a core
exec "$python" -m launchers.cli prep @{command} "$out" "${tasks[@@]}" @{workers}
