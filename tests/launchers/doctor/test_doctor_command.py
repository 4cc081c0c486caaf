"""`maskwright doctor`: a failing check becomes a finding, and every line is documented."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from data_prep.common.errors import UserError
from launchers.commands.doctor import print_report
from launchers.doctor import examine_machine
from launchers.doctor.check_runner import Check, run_checks
from launchers.local import Finding
from tests.support.forked import ROOT
from tests.support.runs import wait_for


def raising(error: BaseException):
    yield Finding("before", "ok", "seen")
    raise error


def test_a_check_that_crashes_or_hangs_is_a_finding():
    checks = [
        Check("a", "raises", lambda: raising(ValueError("no\nsuch thing"))),
        Check("a", "says", lambda: raising(UserError("choose another"))),
        Check("b", "dies", lambda: raising(os.kill(os.getpid(), signal.SIGKILL))),
        Check("b", "hangs", lambda: raising(time.sleep(60)), seconds=0.3),
        Check("b", "leaves", lambda: raising(SystemExit(3))),
        Check("b", "fine", lambda: iter([Finding("fine", "ok", "http://me:secret@host/x?token=abc \x1b[2J")])),
    ]
    begin = time.monotonic()
    found = list(run_checks(checks))
    assert time.monotonic() - begin < 20
    by_name = {finding.name: finding for finding in found}
    assert by_name["raises"].status == by_name["says"].status == by_name["dies"].status == "fail"
    assert by_name["raises"].value == "ValueError: no such thing"
    assert by_name["says"].value == "choose another"
    assert "killed" in by_name["dies"].value
    assert "killed" in by_name["leaves"].value
    assert by_name["hangs"].value == "no answer within 0.3 s"
    assert [finding.name for finding in found][:3] == ["before", "raises", "before"], "in order, with what came before"
    assert by_name["fine"] == Finding("fine", "ok", "http://***@host/x?token=*** \\x1b[2J", "", "b")


def test_a_hanging_check_leaves_no_process_and_no_file(tmp_path):
    def look():
        with tempfile.TemporaryDirectory(dir=tmp_path):
            subprocess.Popen(["sleep", "4321"])
            time.sleep(60)
        yield Finding("never", "ok", "")

    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.run(["sleep", "4321"])
        yield Finding("never", "ok", "")

    checks = [Check("a", "hangs", look, seconds=1), Check("a", "ignores", stubborn, seconds=1)]
    assert {finding.status for finding in run_checks(checks)} == {"fail"}
    assert not list(tmp_path.iterdir())
    wait_for(lambda: not subprocess.run(["pgrep", "-f", "sleep 4321"], capture_output=True).stdout, 10)


@pytest.mark.slow
def test_no_process_of_a_check_returns_to_the_caller(tmp_path):
    """A check is ended at the moment when it ends by itself; the race needs many tries."""
    caller, escaped = os.getpid(), tmp_path / "escaped"
    try:
        for _ in range(4000):
            assert list(run_checks([Check("a", "finds nothing", lambda: ())])) == []
    finally:
        if os.getpid() != caller:
            escaped.touch()
            os._exit(1)
    assert not escaped.exists()


def test_the_command_imports_no_torch():
    code = """if True:
        import sys
        from launchers.commands.doctor import print_report
        from launchers.doctor.check_list import all_checks, checks_of_machine
        from launchers.doctor.check_runner import Check, run_checks
        from launchers.local import Finding
        from pretrain.config import Config
        def watched(check):
            yield from check.findings()
            if "torch" in sys.modules:
                yield Finding(check.name, "fail", "TORCH")
        required = {"run": {"dir": "run"}, "data": {"train": "unused"}, "train": {"steps": 1}}
        of_run = [one for one in checks_of_machine(Config.model_validate(required)) if one.name == "attention"]
        every = all_checks(None) + of_run
        checks = [Check(one.group, one.name, lambda one=one: watched(one)) for one in every]
        print_report(run_checks(checks), None, as_json=True)
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "TORCH" not in done.stdout
    assert "attention" in {finding["name"] for finding in report["findings"]}
    assert {finding["group"] for finding in report["findings"]} >= {"packages", "machine", "storage", "slurm", "gpu"}
    assert sum(report["counts"].values()) == len(report["findings"])


def test_a_line_and_json_say_all(capsys):
    finding = Finding("shm", "warn", "0.06 GiB", "clear it", "machine")
    assert print_report([finding], None, as_json=False)
    lines = ["warn    machine    shm: 0.06 GiB -> clear it", "0 ok, 1 warn, 0 fail, 0 skipped"]
    assert capsys.readouterr().out.splitlines() == lines
    assert not print_report([finding, Finding("x", "fail", "")], {"gemm": 3}, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["findings"][0]["advice"] == "clear it"
    assert report["counts"] == {"ok": 0, "warn": 1, "fail": 1, "skipped": 0}
    assert report["measured"] == {"gemm": 3}
    print_report([finding], None, as_json=True)
    assert "measured" not in json.loads(capsys.readouterr().out)


def test_every_line_is_documented():
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    rows = "\n".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| `"))
    known = {name.split(": ")[-1] for name in re.findall(r"`([^`]+)`", rows)}
    done = list(examine_machine(None))
    assert len(done) > 15
    for finding in done:
        assert re.sub(r"^(partition|gpu) \S+.*", r"\1", finding.name).split(": ")[-1] in known, finding.name
    files = [*(ROOT / "launchers/doctor").glob("*.py"), ROOT / "launchers/slurm/slurm_findings.py"]
    source = "\n".join(path.read_text() for path in files)
    for name in set(re.findall(r'(?:Finding|judge)\(\s*"([^"{]+)"', source)):
        assert name in known | {"gpus"}, name
