#!/usr/bin/env bash
# A training run on Slurm, written by `maskwright launch slurm`. It may be read, edited and submitted again with sbatch.
# On each node one Slurm task runs DeepSpeed's launcher, which starts that node's training processes.

@{directives}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@{cores}
# Slurm may start the job again (a lost node, a preemption, the requeue at the end of this script); the log goes on.
#SBATCH --requeue
#SBATCH --open-mode=append
# 120 s before the time limit, tell this script (B:) and nothing else.
#SBATCH --signal=B:USR1@@120

set -euo pipefail

export run=@{run_dir}
export python=@{python}
export nodes=@{nodes}
export processes=@{processes} # of each node
export cpu=@{cpu} # yes: on CPU with gloo; no: one GPU a process
training=(pretrain.train --config @{config} @{overrides})

cd @{working_dir}
# The Python environment that submitted the job; DeepSpeed builds its extensions with the ninja in it.
export PATH=@{bin_dir}:$PATH
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-@{threads}}
if [ "$cpu" = yes ]; then export DS_ACCELERATOR=cpu; fi

# One line a node, in the order of SLURM_NODEID. Refused when Slurm granted another number of nodes than we launch on.
export hostfile=$run/slurm/hostfile-$SLURM_JOB_ID
scontrol show hostnames "$SLURM_JOB_NODELIST" | "$python" -m launchers.hostfile "$hostfile" "$nodes" "$processes"

# Rank 0 is on the first node, as is this script: a port that follows from the job id, or the next one nobody listens on.
master=$(awk 'NR == 1 { print $1 }' "$hostfile")
last_host=$(awk 'END { print $1 }' "$hostfile")
port=$((12000 + SLURM_JOB_ID % 20000))
while (: <"/dev/tcp/$master/$port") 2>/dev/null; do port=$((port + 1)); done
export master last_host port

# Runs on each node, once.
on_node() {
  set -euo pipefail
  # Talk to the other nodes over the interface that leads to them, unless the user has named one.
  local peer=$master interface
  if [ "$SLURM_NODEID" -eq 0 ]; then peer=$last_host; fi
  peer=$(getent ahosts "$peer" | awk 'NR == 1 { print $1 }')
  interface=$(ip -oneline route get "$peer" | sed 's/.* dev \([^ ]*\).*/\1/')
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$interface}
  echo "node $SLURM_NODEID: $(hostname), interface $GLOO_SOCKET_IFNAME"
  # DeepSpeed's launcher takes the first GPUs it can see, whichever of them Slurm meant. They differ where a node is
  # shared and Slurm does not hide the others' GPUs (ConstrainDevices in cgroup.conf).
  local first
  first=$(seq -s, 0 $((processes - 1)))
  if [ "$cpu" = no ] && [ "${CUDA_VISIBLE_DEVICES:-$first}" != "$first" ]; then
    echo "error: Slurm granted GPUs $CUDA_VISIBLE_DEVICES of $(hostname), but DeepSpeed would use GPUs $first:" \
      "take whole nodes, by submitting with SBATCH_EXCLUSIVE=exclusive in the environment" >&2
    exit 1
  fi
  exec "$python" -m deepspeed.launcher.runner \
    --hostfile "$hostfile" --num_nodes "$nodes" --num_gpus "$processes" \
    --no_ssh --node_rank "$SLURM_NODEID" --master_addr "$master" --master_port "$port" \
    --no_local_rank --module "$@@"
}
export -f on_node

# At the warning, ask the training loop to checkpoint and stop. bash runs a trap only between commands and during
# `wait`, so srun runs in the background and `wait` is repeated after a trap.
warnings=0
on_warning() {
  warnings=$((warnings + 1))
  echo "job $SLURM_JOB_ID: Slurm will end it soon, asking the run to save and stop"
  touch "$run/STOP"
}
trap on_warning USR1
rm -f "$run/STOP" # left by an earlier job

echo "job $SLURM_JOB_ID (start $((${SLURM_RESTART_COUNT:-0} + 1))) on $SLURM_JOB_NODELIST, rank 0 at $master:$port"
# --wait: when one node's task has ended, well or badly, the others are killed after 60 s.
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=60 --kill-on-bad-exit=0 \
  bash -c 'on_node "$@@"' on_node "${training[@@]}" &
step=$!
while :; do
  seen=$warnings
  wait "$step" && code=0 || code=$?
  if [ "$warnings" -eq "$seen" ]; then break; fi
done

# DeepSpeed's launcher can exit 0 though its processes were killed, so the run's own status has the last word, unless
# an earlier job left it.
state=1
if [ "$run/status.json" -nt "$hostfile" ]; then
  "$python" -m launchers.cli status "$run" --exit-code && state=0 || state=$?
fi
if [ "$code" -eq 0 ] && [ "$state" -eq 0 ]; then
  echo "job $SLURM_JOB_ID: the run is complete"
elif [ "$state" -eq 75 ] && [ "$warnings" -gt 0 ]; then
  echo "job $SLURM_JOB_ID: stopped with a checkpoint before the time limit, requeued to go on"
  scontrol requeue "$SLURM_JOB_ID"
  exit 75
elif [ "$state" -eq 75 ]; then
  echo "job $SLURM_JOB_ID: stopped with a checkpoint on request; submit it again to go on"
  exit 75
else
  echo "job $SLURM_JOB_ID: failed (srun exit code $code)" >&2
  exit 1
fi
