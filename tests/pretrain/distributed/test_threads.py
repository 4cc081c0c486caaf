"""Threads of each process of a run: their number, and how they wait."""

import os
from pathlib import Path

import pytest

from pretrain.distributed import Cores, Threads
from pretrain.distributed.threads import control_groups, least_quota


@pytest.mark.parametrize(
    "affinity,quota,job,expected",
    [
        (8, None, None, Cores(8, "8 cores")),
        (1, None, None, Cores(1, "1 core")),
        (8, 2.5, None, Cores(2, "a CPU quota of 2.5")),
        (8, 0.5, None, Cores(1, "a CPU quota of 0.5")),
        (8, 16.0, 32, Cores(8, "8 cores")),
        (64, None, 4, Cores(4, "4 of Slurm's cores")),
        (64, 3.0, 4, Cores(3, "a CPU quota of 3")),
    ],
)
def test_the_least_of_what_is_granted_counts(affinity, quota, job, expected):
    assert Cores.least_of(affinity, quota, job) == expected


@pytest.mark.parametrize(
    "processes,named,number,source",
    [
        (1, None, 8, "8 cores"),
        (3, None, 2, "8 cores"),
        (16, None, 1, "8 cores"),
        (2, "6", 6, "OMP_NUM_THREADS"),
        (2, "6,2", 6, "OMP_NUM_THREADS"),
        (2, "", 4, "8 cores"),
        (2, "many", 4, "8 cores"),
        (2, "0", 4, "8 cores"),
    ],
)
def test_processes_share_the_cores_unless_the_user_says_otherwise(processes, named, number, source):
    environment = {} if named is None else {"OMP_NUM_THREADS": named}
    threads = Threads.of(processes, environment, Cores(8, "8 cores"))
    assert (threads.number, threads.source) == (number, source)


def test_settings_leave_the_user_s_own_alone():
    def settings(processes, environment):
        return Threads.of(processes, environment, Cores(8, "8 cores")).settings(environment)

    assert settings(8, {}) == {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000"}
    assert settings(1, {})["OMP_NUM_THREADS"] == "8"
    assert settings(1, {"OMP_NUM_THREADS": "5,3"}) == {"GOMP_SPINCOUNT": "1000"}
    for name, value in (("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "7")):
        assert settings(8, {name: value}) == {"OMP_NUM_THREADS": "1"}


def test_usable_cores_follow_affinity_quota_and_slurm(monkeypatch):
    monkeypatch.setattr("pretrain.distributed.threads.cpu_quota", lambda: None)
    assert Cores.usable({}).number == len(os.sched_getaffinity(0))
    assert Cores.usable({"SLURM_CPUS_ON_NODE": "1"}) == Cores.least_of(len(os.sched_getaffinity(0)), None, 1)
    monkeypatch.setattr("pretrain.distributed.threads.cpu_quota", lambda: 0.5)
    assert Cores.usable({}) == Cores(1, "a CPU quota of 0.5")


def test_control_groups_of_both_versions():
    folders = control_groups("4:memory:/jobs/7\n0::/slurm/job_1\n")
    assert Path("/sys/fs/cgroup/memory/jobs/7") in folders
    assert Path("/sys/fs/cgroup/memory/jobs") in folders
    assert Path("/sys/fs/cgroup/slurm/job_1") in folders
    assert Path("/sys/fs") not in folders
    assert least_quota(["max 100000", "150000 100000", "-1 100000", "400000 100000"]) == 1.5
    assert least_quota(["max 100000"]) is None
