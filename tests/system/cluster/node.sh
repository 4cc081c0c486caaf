#!/bin/sh
# A node of cluster.sh: slurmd in the network of its name, with a host name and a /dev/shm of its own, as on a machine of
# its own: ranks of one node find each other there.
# Not `ip netns exec`: it remounts /sys, and slurmd no longer finds the cgroup tree.
exec nsenter --net="/run/netns/$1" unshare --uts --ipc --mount \
  sh -c "hostname $1 && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N $1"
