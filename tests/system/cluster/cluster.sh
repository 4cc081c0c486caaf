#!/usr/bin/env bash
# A real Slurm cluster on one machine: a controller and N nodes n1..nN, each node with a network and a host name of its own.
#
#   cluster.sh STATE N CORES GPUS
#
# as root and as process 1 of new PID, mount, network, UTS and IPC namespaces (cluster.py).
# Everything lives inside those namespaces: the bridge and the nodes' networks, /run (a tmpfs), /etc/hosts and every
# process. When process 1 ends, for whatever reason, the kernel removes all of it; only STATE (logs, slurm.conf) remains.
# STATE/ready appears when all nodes are idle. Nodes are at 10.77.0.11 and up, the controller (ctl) at 10.77.0.1.
# Each node claims so many cores and GPUs, which are null devices: enough to see what Slurm grants.
set -euo pipefail
state=$1
nodes=$2
cores=$3
gpus=$4

mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/munge /run/netns "$state/ctld"

# The controller's side of the network, and the names of all.
hostname ctl
ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.1/24 dev br0
ip link set br0 up
{
  echo '127.0.0.1 localhost'
  echo '10.77.0.1 ctl'
  for i in $(seq "$nodes"); do echo "10.77.0.$((10 + i)) n$i"; done
} >"$state/hosts"
mount --bind "$state/hosts" /etc/hosts

(umask 077 && head -c 128 /dev/urandom >/run/munge.key)
munged --key-file=/run/munge.key --seed-file=/run/munge.seed --log-file=/run/munge.log

# config_overrides: a node may promise more cores than this machine has.
# cred_expire: a requeued job may start again after this many seconds (120 by default).
# SchedulerParameters: look for jobs to start every second.
cat >"$state/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=ctl(10.77.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=$state/ctld
SlurmdSpoolDir=/run/spool.%n
SlurmdPidFile=/run/slurmd.%n.pid
SlurmctldPidFile=/run/slurmctld.pid
SlurmdLogFile=$state/slurmd.%n.log
SlurmctldLogFile=$state/slurmctld.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
ReturnToService=2
JobRequeue=1
SlurmdTimeout=30
KillWait=5
GresTypes=gpu
NodeName=n[1-$nodes] CPUs=$cores RealMemory=4000 Gres=gpu:$gpus State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime=20 PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
CONF
for i in $(seq 0 $((gpus - 1))); do mknod "/run/gpu$i" c 1 3; done
echo "NodeName=n[1-$nodes] Name=gpu File=/run/gpu[0-$((gpus - 1))]" >"$state/gres.conf"
export SLURM_CONF="$state/slurm.conf"

slurmctld -D &
for i in $(seq "$nodes"); do
  ip netns add "n$i"
  ip link add "veth$i" type veth peer name eth0 netns "n$i"
  ip link set "veth$i" master br0 up
  ip -n "n$i" addr add "10.77.0.$((10 + i))/24" dev eth0
  ip -n "n$i" link set eth0 up
  ip -n "n$i" link set lo up
  mkdir -p "/run/spool.n$i"
  "$(dirname "$0")/node.sh" "n$i" &
done

for _ in $(seq 60); do
  if [ "$(sinfo --noheader --partition=main --Node --format=%T 2>/dev/null | grep -c '^idle$')" = "$nodes" ]; then
    touch "$state/ready"
    wait
  fi
  sleep 0.5
done
echo "the nodes did not come up within 30 s; see the logs in $state" >&2
exit 1
