#!/usr/bin/env bash
# N machines h1..hN with ssh on one machine, each with a network, a host name, a /dev/shm and an sshd of its own; no Slurm.
#
#   hosts.sh STATE N
#
# as root and as process 1 of new PID, mount, network, UTS and IPC namespaces (cluster.py), in which all of it lives.
# STATE/ready appears when all of them answer. Hosts are at 10.78.0.11 and up, this machine (desk) at 10.78.0.1.
# The keys are made here: one with which root of desk and of every host logs in, and a host key for each host.
set -euo pipefail
state=$1
hosts=$2

mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/sshd

hostname desk
ip link set lo up
ip link add br0 type bridge
ip addr add 10.78.0.1/24 dev br0
ip link set br0 up

ssh-keygen -q -t ed25519 -N '' -C '' -f "$state/key"
names() {
  echo '127.0.0.1 localhost'
  echo '10.78.0.1 desk'
  for i in $(seq "$hosts"); do echo "10.78.0.$((10 + i)) h$i"; done
}
names >"$state/hosts"
for i in $(seq "$hosts"); do
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$state/host_key.h$i"
  echo "h$i $(cat "$state/host_key.h$i.pub")" >>"$state/known_hosts"
  cp "$state/key.pub" "$state/authorized_keys.h$i"
  # As Debian's installer has it: a host's own name is a loopback address.
  { names | grep -v " h$i\$" && echo "127.0.1.1 h$i"; } >"$state/hosts.h$i"
  cat >"$state/sshd_config.h$i" <<CONF
HostKey $state/host_key.h$i
AuthorizedKeysFile $state/authorized_keys.h$i
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
SetEnv OMP_NUM_THREADS=1
CONF
done
cat >"$state/ssh_config" <<CONF
Host *
  IdentityFile $state/key
  UserKnownHostsFile $state/known_hosts
  CheckHostIP no
CONF
mount --bind "$state/hosts" /etc/hosts
mount --bind "$state/ssh_config" /etc/ssh/ssh_config

for i in $(seq "$hosts"); do
  ip netns add "h$i"
  ip link add "veth$i" type veth peer name "eth$i" netns "h$i"
  ip link set "veth$i" master br0 up
  ip -n "h$i" addr add "10.78.0.$((10 + i))/24" dev "eth$i"
  ip -n "h$i" link set "eth$i" up
  ip -n "h$i" link set lo up
  nsenter --net="/run/netns/h$i" unshare --uts --ipc --mount sh -c "
    hostname h$i && mount -t tmpfs tmpfs /dev/shm && mount --bind '$state/hosts.h$i' /etc/hosts &&
    exec $(command -v sshd) -D -e -f '$state/sshd_config.h$i'" &
  echo $! >"$state/sshd.h$i.pid"
done

for i in $(seq "$hosts"); do
  for _ in $(seq 50); do
    if ssh -o BatchMode=yes "h$i" true; then continue 2; fi
    sleep 0.2
  done
  echo "h$i does not answer; see the log in $state" >&2
  exit 1
done
touch "$state/ready"
wait
