"""Training on several hosts: hostfiles, comparison of the hosts, and command lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.urls import is_secret
from launchers.hosts import HostsJob, read_hostfile
from launchers.hosts.host_checks import disagreement, master_address
from launchers.hosts.host_probe import HostFacts
from launchers.hosts.start_hosts import forwarded, requests
from tests.support.secrets import SECRETS

JOB = HostsJob(
    config=Path("/shared/run.yaml"),
    overrides=["train.steps=7"],
    run_dir=Path("/shared/run"),
    hosts=["a", "b"],
    processes=2,
    cpu=False,
    working_dir=Path("/shared"),
    python=Path("/venv/bin/python"),
    python_path="",
)


def test_the_first_hosts_of_a_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\nb slots=8  # rank 0\n\na slots=8\nc slots=1\n")
    assert read_hostfile(tmp_path / "hosts", nodes=2, processes=4) == ["b", "a"]


@pytest.mark.parametrize(
    "text,sentence",
    [
        ("a slots=2\n", "hosts has 1 hosts (a), and --nodes is 2; add hosts, or lower --nodes"),
        ("", "hosts has 0 hosts (none), and --nodes is 2"),
        ("a slots=2\nb slots=1\n", "b has 1 slots, and --gpus-per-node is 2"),
        ("a slots=2\na slots=2\n", "line 2: a is there twice"),
        ("a slots=2\nb\n", "line 2: 'b' is not of the form `HOST slots=N`"),
        ("a slots=2\n-oProxyCommand=x slots=2\n", "line 2: '-oProxyCommand=x slots=2' is not of the form"),
    ],
)
def test_bad_hostfiles_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UserError) as error:
        read_hostfile(tmp_path / "hosts", nodes=2, processes=2)
    assert sentence in str(error.value)


def test_a_missing_hostfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="correct --hostfile"):
        read_hostfile(tmp_path / "hosts", nodes=1, processes=1)


HERE = {"Python": "3.11.2", "torch": "2.13.0", "config": "c0", "data set": "d0", "run folder": "token"}


def answer(**differing: Any) -> HostFacts:
    own: dict[str, Any] = {"gpus": 2, "client": "10.0.0.1", "server": "10.0.0.2", "writable": True}
    common = HERE | {name: value for name, value in differing.items() if name in HERE}
    return HostFacts(common, **own | {name: value for name, value in differing.items() if name in own})


@pytest.mark.parametrize(
    "differing,sentence",
    [
        ({}, None),
        ({"torch": "2.12.0"}, "b has torch 2.12.0 and this machine 2.13.0; install the same"),
        ({"torch": None}, "b has torch not at all and this machine 2.13.0; install the same"),
        ({"config": "c1"}, "b has another config than this machine; give every host the same files"),
        ({"data set": "d1"}, "b has another data set than this machine; give every host the same files"),
        ({"run folder": "x"}, "b sees another /shared/run than this machine: the run folder must be on shared storage"),
        ({"writable": False}, "b may not write into /shared/run; it must be writable on every host"),
        ({"gpus": 1}, "b has 1 GPUs, and --gpus-per-node is 2; lower it, or train with --cpu"),
    ],
)
def test_a_host_that_differs_is_named(differing: dict[str, Any], sentence: str | None) -> None:
    assert disagreement("b", answer(**differing), HERE, JOB) == sentence


def test_rank_0_is_where_the_others_can_reach_it() -> None:
    far = {"a": answer(), "b": answer(server="10.0.0.3")}
    assert master_address(far, "a") == "10.0.0.2"
    for loopback in ("127.0.1.1", "::1"):  # started on a itself, whose name leads to a loopback address there
        near = {"a": answer(server=loopback, client=loopback), "b": answer(server="10.0.0.3", client="10.0.0.2")}
        assert master_address(near, "a") == "10.0.0.2"


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_known_by_their_names(name: str) -> None:
    assert is_secret(name, "x")


def test_variables_of_one_host_stay_there() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "3", "PATH": "/bin", "HOME": "/root", "SSH_AUTH_SOCK": "/x"}
    assert forwarded(environment | SECRETS | {"NCCL_DEBUG": "INFO"}) == SECRETS | {"NCCL_DEBUG": "INFO"}


def test_secrets_go_to_the_hosts_beside_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for host, request in zip(JOB.hosts, requests(JOB, "10.0.0.2", 12345), strict=True):
        line = " ".join([*JOB.ssh_command(host), *map(str, request.pop("command"))])  # type: ignore[call-overload]
        assert not [value for value in SECRETS.values() if value in line]
        assert all(value in json.dumps(request) for value in SECRETS.values())
