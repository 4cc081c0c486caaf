"""Answers of hosts and processes, and hostfiles: damaged ones are refused in one line, or skipped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.reading import parse_json
from launchers.doctor.node_report import print_value, values_by_task
from launchers.hosts import HostsJob, read_hostfile
from launchers.hosts.host_entry import HostRequest
from launchers.hosts.host_probe import HostFacts
from launchers.hosts.ssh import MARK, read_answer
from launchers.hosts.start_hosts import requests
from tests.support.forked import ROOT

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000
OWN: dict[str, Any] = {"gpus": 2, "client": "10.0.0.1", "server": "fe80::1%eth0", "writable": True}


@pytest.mark.parametrize("text", ["", "null", "[1]", DEEP, LONG, f'{{"port": {LONG}}}', '{"error": ["x\\ny"]}', "{"])
def test_a_damaged_answer_names_the_host(text: str) -> None:
    with pytest.raises(UserError, match=r"^node7") as refused:
        read_answer("node7", f"{MARK}{text}\n", HostFacts)
    assert len(str(refused.value)) <= 300
    assert "\n" not in str(refused.value)


def _reply(**values: Any) -> str:
    return json.dumps({"value": {"common": {"torch": None}} | OWN | values})


@pytest.mark.parametrize(
    "wrong",
    [
        {"common": []},
        {"common": {"Python": 3}},
        {"gpus": "many"},
        {"server": "-oProxyCommand=x"},
        {"client": None},
    ],
    ids=str,
)
def test_a_description_of_wrong_types_is_refused(wrong: dict[str, Any]) -> None:
    assert read_answer("node7", _reply(), HostFacts) == HostFacts({"torch": None}, **OWN)
    with pytest.raises(UserError, match="node7 gave an answer that cannot be used"):
        read_answer("node7", _reply(**wrong), HostFacts)


@pytest.mark.parametrize("port", ["80", True, None])
def test_a_port_of_another_kind_is_refused(port: Any) -> None:
    assert read_answer("node7", '{"value": 80}', int) == 80
    with pytest.raises(UserError, match="node7 gave an answer that cannot be used"):
        read_answer("node7", json.dumps({"value": port}), int)


@pytest.mark.parametrize("text", [f"a slots={LONG}\n", "a slots=²\n", DEEP, "a\0 slots=1\n", "pipe"])
def test_a_damaged_hostfile_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    os.mkfifo(path) if text == "pipe" else path.write_text(text)
    with pytest.raises(UserError) as refused:
        read_hostfile(path, nodes=1, processes=1)
    assert len(str(refused.value)) <= 300


@pytest.mark.parametrize("text", ["", "{", DEEP, LONG])
def test_the_doctor_skips_damaged_results(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_value({"gpus": 2})
    lines = [f"0: {line}" for line in capsys.readouterr().out.splitlines()]
    damaged = [f"1: {line}" for line in (lines[0][3:], text, lines[-1][3:])]
    assert values_by_task("\n".join([*damaged, *lines, f"{LONG}: x"])) == {0: {"gpus": 2}}


def test_a_host_answers_a_damaged_request_in_one_line() -> None:
    request = '{"command": "true", "environment": {}}\n'
    command = [sys.executable, "-m", "launchers.hosts.host_entry"]
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr == "error: the request to this host cannot be used: command is 'true', not a list\n"


def test_a_host_understands_what_it_is_asked() -> None:
    job = HostsJob(Path("/c"), [], Path("/run"), ["a", "b"], 2, True, Path("/"), Path("/bin/python"), "")
    for request in requests(job, "10.0.0.1", 80):
        assert parse_json(json.dumps(request), HostRequest).environment["DS_ACCELERATOR"] == "cpu"


def test_a_probe_listens_and_connects() -> None:
    command = [sys.executable, "-m", "launchers.hosts.host_probe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as probe:
        assert probe.stdin
        assert probe.stdout

        def ask(kind: Any, **question: Any) -> Any:
            print(json.dumps(question), file=probe.stdin, flush=True)
            return read_answer("node7", probe.stdout.readline(), kind)

        port = ask(int, question="listen", address="127.0.0.1")
        assert ask(NoneType, question="connect", address="127.0.0.1", port=port) is None
        with pytest.raises(UserError, match="node7: it cannot reach rank 0"):
            ask(NoneType, question="connect", address="127.0.0.1", port=1)
        probe.stdin.close()
