"""What `maskwright doctor` thinks of what it sees, and that a check that goes wrong is a finding."""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_prep.errors import UserError
from launchers.app import app
from launchers.doctor import extensions, gpus, heavy, machine, network, packages, slurm, storage, tracking
from launchers.doctor.finding import Check, Finding, worst
from launchers.doctor.report import as_json, line
from launchers.doctor.run_checks import run_checks
from launchers.doctor.subjects import all_checks, machine_checks
from pretrain.config import Config
from tests.support.runs import wait_for

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
GPU = "0, NVIDIA H200, 580.65.06, 143771, 4, 9.0, Disabled, Enabled, 0"


def status(finding: Finding) -> str:
    assert (finding.status in ("warn", "fail")) == bool(finding.advice), (
        "what is wrong needs advice, what is not does not"
    )
    return finding.status


def gpu(**changes: str) -> gpus.Gpu:
    return dataclasses.replace(gpus.parse_gpus(GPU)[0], **changes)


def raising(error: BaseException):
    yield Finding("before", "ok", "seen")
    raise error


def test_a_check_that_crashes_or_hangs_is_a_finding():
    checks = [
        Check("a", "raises", lambda: raising(ValueError("no\n such thing"))),
        Check("a", "says", lambda: raising(UserError("choose another"))),
        Check("b", "dies", lambda: raising(os.kill(os.getpid(), signal.SIGKILL))),
        Check("b", "hangs", lambda: raising(time.sleep(60)), seconds=0.3),
        Check("b", "leaves", lambda: raising(SystemExit(3))),
        Check("b", "fine", lambda: iter([Finding("fine", "ok", "http://me:secret@host/x?token=abc \x1b[2J")])),
    ]
    begin = time.monotonic()
    found = run_checks(checks)
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
        with storage._scratch(tmp_path):
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


def test_the_command_imports_no_torch():
    code = """if True:
        import sys
        from launchers.cli import main
        import launchers.doctor.run_checks as runner
        from launchers.doctor.finding import Finding
        find = runner._findings
        def watched(check):
            yield from find(check)
            if "torch" in sys.modules:
                yield Finding(check.name, "fail", "TORCH")
        runner._findings = watched
        sys.argv = ["maskwright", "doctor", "--json"]
        try:
            main()
        except SystemExit:
            pass
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "TORCH" not in done.stdout
    assert {finding["group"] for finding in report["findings"]} >= {"packages", "machine", "storage", "slurm", "gpu"}
    assert sum(report["counts"].values()) == len(report["findings"])


def test_the_worst_status():
    some = [Finding("a", status, "") for status in ("ok", "skipped", "warn", "fail")]
    assert worst(some) == "fail"
    assert worst(some[:3]) == "warn"
    assert worst(some[:2]) == "ok"
    assert worst(some[1:2]) == worst([]) == "skipped"


def test_a_line_and_json_say_all():
    finding = Finding("shm", "warn", "0.06 GiB", "clear it", "machine")
    assert line(finding) == "warn    machine    shm: 0.06 GiB -> clear it"
    report = json.loads(as_json([finding], 1.0, {"gemm": 3}))
    assert report["findings"][0]["advice"] == "clear it"
    assert report["counts"] == {"ok": 0, "warn": 1, "fail": 0, "skipped": 0}
    assert report["measured"] == {"gemm": 3}
    assert "measured" not in json.loads(as_json([finding], 1.0))


@pytest.mark.parametrize(
    "installed,expected",
    [("2.11.0+cu130", "ok"), ("2.13.5", "ok"), ("2.14.0", "fail"), ("2.10.9", "fail"), (None, "fail")],
)
def test_versions(installed, expected):
    finding = packages.judge_version("torch<2.14,>=2.11", installed)
    assert status(finding) == expected
    assert expected == "ok" or "torch<2.14,>=2.11" in finding.advice


def test_python_and_what_is_not_needed():
    assert status(packages.judge_python("3.10.1", ">=3.10", "Linux-6")) == "ok"
    assert status(packages.judge_python("3.9.18", ">=3.10", "Linux-6")) == "fail"
    assert status(packages.judge_python("3.12.1", ">=3.10", "macOS-14")) == "warn"
    triton = "triton<3.8,>=3.6; platform_system == 'Linux' and extra == 'dev'"
    assert packages.judge_version(triton, None, needed=False).status == "skipped"
    assert status(packages.judge_version(triton, None)) == "fail"
    assert not packages._always(triton)


@pytest.mark.parametrize(
    "changes,expected",
    [
        ({}, "ok"),
        ({"errors": "2"}, "fail"),
        ({"errors": "[N/A]"}, "ok"),
        ({"capability": "6.1"}, "fail"),
        ({"capability": "7.5"}, "fail"),
        ({"mig": "Enabled"}, "warn"),
        ({"mig": "[N/A]", "ecc": "[N/A]"}, "ok"),
        ({"ecc": "Disabled"}, "warn"),
        ({"used": "60000"}, "warn"),
    ],
)
def test_gpus(changes, expected):
    assert status(gpus.judge_gpu(gpu(**changes), "bf16")) == expected


def test_older_gpus_train_in_fp16_and_kinds_are_compared():
    assert status(gpus.judge_gpu(gpu(capability="7.5"), "fp16")) == "ok"
    assert gpus.judge_likeness([gpu(), gpu()]) is None
    assert "A100, NVIDIA H200" in gpus.judge_likeness([gpu(), gpu(name="A100")]).value
    assert gpus.parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize(
    "build,driver,count,expected",
    [
        ("13.0", "13.0", 8, "ok"),
        ("12.8", "12.2", 8, "ok"),
        ("12.8", "13.0", 8, "ok"),
        ("13.0", "12.9", 8, "fail"),
        (None, "13.0", 8, "fail"),
        (None, None, 0, "ok"),
        ("13.0", None, 0, "ok"),
        ("13.0", None, 2, "warn"),
    ],
)
def test_torch_against_the_driver(build, driver, count, expected):
    assert status(gpus.judge_build(build, driver, count)) == expected


@pytest.mark.parametrize(
    "usable,present,quota,threads,expected",
    [
        (8, 64, None, None, "ok"),
        (8, 8, None, "8", "ok"),
        (8, 8, None, "16", "warn"),
        (8, 8, 2.0, "8", "warn"),
        (8, 8, 2.0, "2", "ok"),
        (1, 8, None, None, "warn"),
        (1, 1, None, None, "ok"),
    ],
)
def test_cores(usable, present, quota, threads, expected):
    assert status(machine.judge_cores(usable, present, quota, threads)) == expected


def test_memory_and_its_like():
    assert status(machine.judge_memory(64 * GIB, 60 * GIB, None, 0, 0)) == "ok"
    assert status(machine.judge_memory(64 * GIB, 60 * GIB, GIB, 0, 0)) == "warn"
    assert status(machine.judge_memory(64 * GIB, GIB, None, 0, 0)) == "warn"
    assert status(machine.judge_memory(64 * GIB, 60 * GIB, None, 32 * GIB, 16 * GIB)) == "warn"
    assert status(machine.judge_shm(64 << 20, 64 << 20)) == "fail"
    assert status(machine.judge_shm(GIB, GIB // 2)) == "warn"
    assert status(machine.judge_shm(8 * GIB, 8 * GIB)) == "ok"
    assert status(machine.judge_files(1024, 524288)) == "warn"
    assert "ulimit -n 2048" in machine.judge_files(1024, 2048).advice
    assert status(machine.judge_files(-1, -1)) == "ok"
    assert status(machine.judge_locked(65536, infiniband=True)) == "warn"
    assert status(machine.judge_locked(65536, infiniband=False)) == "ok"
    assert status(machine.judge_locked(-1, infiniband=True)) == "ok"
    assert status(machine.judge_core_files(-1, "core")) == "warn"
    assert status(machine.judge_core_files(0, "core")) == "ok"
    assert status(machine.judge_core_files(-1, "|/usr/lib/systemd-coredump %p")) == "ok"
    assert status(machine.judge_governor("powersave", "acpi-cpufreq")) == "warn"
    assert status(machine.judge_governor("powersave", "intel_pstate")) == "ok"
    assert status(machine.judge_governor(None, None)) == "skipped"
    assert status(machine.judge_clock(0.0, None)) == "fail"
    assert status(machine.judge_clock(2e9, False)) == "warn"
    assert status(machine.judge_clock(2e9, None)) == "ok"


def test_control_groups_of_both_versions():
    found = machine.control_groups("4:memory:/jobs/7\n0::/slurm/job_1\n")
    assert Path("/sys/fs/cgroup/memory/jobs/7") in found
    assert Path("/sys/fs/cgroup/memory/jobs") in found
    assert Path("/sys/fs/cgroup/slurm/job_1") in found
    assert Path("/sys/fs") not in found
    assert machine.cpu_quota(["max 100000", "150000 100000", "-1 100000", "400000 100000"]) == 1.5
    assert machine.cpu_quota(["max 100000"]) is None


def test_network():
    assert status(network.judge_host_name("n1", ["127.0.1.1", "10.0.0.1"])) == "ok"
    assert status(network.judge_host_name("n1", ["127.0.1.1", "::1"])) == "warn"
    assert status(network.judge_host_name("n1", [])) == "warn"
    present = ["eth0", "ib0", "lo"]
    for named, expected in {
        "eth0": "ok",
        "eth1": "fail",
        "=ib": "fail",
        "=ib0": "ok",
        "eth,ib": "ok",
        "^lo": "ok",
    }.items():
        assert status(network.judge_interface("eth0", present, {"NCCL_SOCKET_IFNAME": named})) == expected, named
    assert status(network.judge_interface(None, present, {})) == "warn"
    assert network.judge_adapters({}).status == "skipped"
    assert status(network.judge_adapters({"mlx5_0:1": "4: ACTIVE"})) == "ok"
    assert "mlx5_1:1" in network.judge_adapters({"mlx5_0:1": "4: ACTIVE", "mlx5_1:1": "1: DOWN"}).advice
    assert status(network.judge_adapters({"mlx5_1:1": "1: DOWN"})) == "warn"
    assert network.address_towards("127.0.0.1") == "127.0.0.1"


MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:50 / /shared rw - nfs4 server:/export rw,vers=4.2
31 22 0:51 / /shared/my\040disk rw - fuse.sshfs me@host:/ rw
32 22 0:52 / /shared2 rw - tmpfs tmpfs rw
"""


def test_mounts(tmp_path):
    assert storage.mount_of(tmp_path, MOUNTS) == storage.Mount("/", "ext4")
    table = MOUNTS.replace("/shared/my\\040disk", str(tmp_path).replace(" ", "\\040"))
    assert storage.mount_of(tmp_path / "not" / "there", table).kind == "fuse.sshfs"
    assert storage.Mount("/", "fuse.sshfs").network
    assert storage.Mount("/", "nfs4").network
    assert not storage.Mount("/", "fuse.overlayfs").network
    assert not storage.Mount("/", "xfs").network


def test_storage(tmp_path):
    disk, nfs, memory = (storage.Mount("/", kind) for kind in ("xfs", "nfs", "tmpfs"))
    held = storage.Held(1 << 40, 10**6)
    assert status(storage.judge_room("run folder", tmp_path, disk, held)) == "ok"
    assert status(storage.judge_room("run folder", tmp_path, nfs, held)) == "ok"
    assert status(storage.judge_room("run folder", tmp_path, memory, held)) == "warn"
    assert status(storage.judge_room("run folder", tmp_path, disk, storage.Held(5 << 30, None))) == "warn"
    assert status(storage.judge_room("run folder", tmp_path, disk, storage.Held(1 << 20, None))) == "fail"
    assert status(storage.judge_room("run folder", tmp_path, disk, storage.Held(1 << 40, 3))) == "fail"
    assert status(storage.judge_fsync("x", 0.01)) == "ok"
    assert status(storage.judge_fsync("x", 0.5)) == "warn"
    assert status(storage.judge_lock("x", None)) == "ok"
    assert status(storage.judge_lock("x", "no locks")) == "warn"
    assert status(storage.judge_skew("x", -0.5)) == "ok"
    assert status(storage.judge_skew("x", -30.0)) == "warn"
    assert status(storage.judge_speed("x", "written at", 10e6, 50e6, "slow")) == "warn"
    assert status(storage.judge_speed("x", "written at", 100e6, 50e6, "slow")) == "ok"


def test_extensions(tmp_path):
    assert status(extensions.judge_compiler("g++ 12", True, False)) == "ok"
    assert status(extensions.judge_compiler(None, True, False)) == "warn"
    assert "ninja" in extensions.judge_compiler("g++ 12", False, True).value
    assert status(extensions.judge_folder("deepspeed", tmp_path, True, False, [], [])) == "ok"
    assert "TORCH_EXTENSIONS_DIR" in extensions.judge_folder("deepspeed", tmp_path, False, False, [], []).advice
    unneeded = extensions.judge_folder("deepspeed", tmp_path, False, False, [], [], needed=False)
    assert status(unneeded) == "warn"
    assert "TRITON_CACHE_DIR" in extensions.judge_folder("triton", tmp_path, True, True, [], []).advice
    assert "rm /x/lock" in extensions.judge_folder("deepspeed", tmp_path, True, False, [], ["/x/lock"]).advice
    assert status(extensions.judge_tokenizers({"nanotoken": "0.1"})) == "ok"
    assert extensions.judge_tokenizers({"nanotoken": None}).status == "skipped"


def test_a_disk_that_state_is_swapped_to(tmp_path, monkeypatch):
    disk, much = storage.Mount("/", "ext4"), storage.Held(100 << 30, None)
    assert status(storage.judge_swap("x", tmp_path, disk, much)) == "ok"
    assert status(storage.judge_swap("x", tmp_path, disk, storage.Held(5 << 30, None))) == "warn"
    assert status(storage.judge_swap("x", tmp_path, disk, storage.Held(1 << 20, None))) == "fail"
    assert "host itself" in storage.judge_swap("x", tmp_path, storage.Mount("/", "nfs4"), much).advice
    assert "in memory" in storage.judge_swap("x", tmp_path, storage.Mount("/", "tmpfs"), much).advice
    monkeypatch.setattr(storage, "SPEED_BYTES", 1 << 20)
    (tmp_path / "made").mkdir()
    assert [one.name for one in storage._swap_speed("x", tmp_path / "made" / "not yet")] == ["x: speed", "x: reads"]
    assert not list((tmp_path / "made").iterdir())
    monkeypatch.setattr(storage, "_timed_write", lambda path: (10**8, 1.0))
    monkeypatch.setattr(storage, "_timed_read", lambda path: (10**9, 1.0))
    assert [status(found) for found in storage._swap_speed("x", tmp_path)] == ["warn", "ok"]
    monkeypatch.setattr(storage.tempfile, "mkdtemp", refuse)
    (found,) = storage._swap_speed("x", tmp_path)
    assert (found.status, found.value) == ("fail", f"{tmp_path}: Permission denied")


def refuse(**_):
    raise PermissionError(13, "Permission denied")


def test_libaio_is_asked_for_where_it_is_needed(tmp_path, monkeypatch):
    names = [check.name for check in extensions.checks()]
    assert [check.name for check in extensions.checks(swaps=True)] == [*names, "libaio"]
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    assert "no g++" in next(extensions._libaio()).value
    for code, expected in ((0, "ok"), (1, "fail")):
        (tmp_path / "c++").write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "c++").chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
        assert status(next(extensions._libaio())) == expected
    monkeypatch.setattr(extensions, "_place", lambda folder: (False, False))
    monkeypatch.setattr(extensions, "gpu_count", lambda: 8)
    for swaps, expected in ((True, "fail"), (False, "warn")):
        (check,) = (one for one in extensions.checks(swaps) if one.name == "deepspeed")
        (found,) = check.look()
        assert found.status == expected, "on GPUs nothing else is compiled for"


def test_a_run_that_swaps_has_its_disk_looked_at(tmp_path):
    values = {"run": {"dir": str(tmp_path)}, "data": {"train": str(tmp_path)}, "train": {"steps": 1}}
    zero = {"stage": 3, "offload": "nvme", "nvme_path": str(tmp_path / "swap")}
    for more, there in (({}, False), ({"zero": zero}, True)):
        names = [check.name for check in machine_checks(Config.model_validate(values | more))]
        assert ("zero.nvme_path: room" in names) == ("zero.nvme_path: speed" in names) == ("libaio" in names) == there


@pytest.mark.parametrize("missing,expected", [((), "ok"), (("salloc",), "warn"), (slurm.PROGRAMS, "skipped")])
def test_slurm_programs(missing, expected):
    assert status(slurm.judge_programs(missing)) == expected


CONFIG = """Configuration data as of 2026-01-01T00:00:00
JobRequeue              = 0
KillWait                = 10 sec
MaxArraySize            = 1001
"""


def test_slurm_settings():
    found = {finding.name: finding for finding in slurm.judge_config(slurm.parse_config(CONFIG))}
    assert status(found["requeue"]) == status(found["kill wait"]) == "warn"
    assert found["arrays"].value.startswith("up to 1,000 elements")
    sound = slurm.parse_config(CONFIG.replace("= 0", "= 1").replace("10 sec", "30 sec"))
    assert {finding.status for finding in slurm.judge_config(sound)} == {"ok"}
    assert status(slurm.judge_controller(True, "Slurmctld(primary) at ctl is UP")) == "ok"
    assert status(slurm.judge_controller(True, "Slurmctld(primary) at ctl is DOWN")) == "warn"
    assert status(slurm.judge_controller(False, "")) == "warn"


def test_slurm_partitions():
    lines = "main*|up|1-00:00:00|3|idle|gpu:8\nmain*|up|1-00:00:00|1|down*|gpu:8\nold|up|infinite|2|drained|(null)"
    main, down, old = slurm.parse_partitions(lines + "\ngarbage")
    finding = slurm.judge_partition([main, down])
    assert (finding.name, status(finding)) == ("partition main (default)", "ok")
    assert finding.value == "3 of 4 nodes in service, limit 1-00:00:00, gpu:8"
    assert status(slurm.judge_partition([old])) == "warn"
    assert status(slurm.judge_partition([main._replace(up=False)])) == "warn"


def test_tracking(tmp_path):
    reply = tracking.Reply
    disk, nfs = storage.Mount("/", "ext4"), storage.Mount("/", "nfs")
    assert status(tracking.judge_database(tmp_path, disk, writable=True)) == "ok"
    assert status(tracking.judge_database(tmp_path, nfs, writable=True)) == "warn"
    assert status(tracking.judge_database(tmp_path, disk, writable=False)) == "fail"
    assert status(tracking.judge_server("http://x", reply(200), False)) == "ok"
    assert status(tracking.judge_server("http://x", reply(None, "refused"), False)) == "fail"
    assert "asks for" in tracking.judge_server("http://x", reply(401), False).value
    assert "does not take" in tracking.judge_server("http://x", reply(403), True).value
    assert status(tracking.judge_server("http://x", reply(500), True)) == "fail"
    assert status(tracking.judge_exposure("http://x", False, reply(200))) == "warn"
    assert status(tracking.judge_exposure("http://x", False, reply(401))) == "ok"
    assert status(tracking.judge_exposure("http://x", True, reply(200))) == "ok"
    assert tracking.judge_encryption("https", False, True) is None
    assert tracking.judge_encryption("http", True, True) is None
    assert status(tracking.judge_encryption("http", False, True)) == "warn"
    assert tracking.judge_secret("http://x:5000") is None
    secret = tracking.judge_secret("http://me:hunter2@x:5000")
    assert status(secret) == "fail"
    assert "hunter2" not in str(secret)


def test_credentials():
    basic = {"Authorization": "Basic bWU6cHc="}
    assert tracking.credentials(None, None, {}) == {}
    assert tracking.credentials("me", "pw", {}) == basic
    assert (
        tracking.credentials(None, None, {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pw"}) == basic
    )
    assert tracking.credentials("me", "pw", {"MLFLOW_TRACKING_TOKEN": "t"}) == {"Authorization": "Bearer t"}


def test_code_for_a_gpu():
    built = ["sm_80", "sm_90a", "sm_100", "compute_100"]
    for capability in ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0)):
        assert heavy.judge_architecture("H200", capability, built) is None, capability
    assert status(heavy.judge_architecture("V100", (7, 0), built)) == "fail"
    assert status(heavy.judge_architecture("B200", (10, 0), ["sm_90"])) == "fail"
    assert status(heavy.judge_architecture("A100", (8, 0), ["sm_86"])) == "fail"


def test_random_output_of_programs_does_no_harm():
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choice("ab01|=,*\n -.") for _ in range(80))
        slurm.parse_config(text)
        gpus.parse_gpus(text)


def test_every_line_is_documented():
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    rows = "\n".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| `"))
    known = {name.split(": ")[-1] for name in re.findall(r"`([^`]+)`", rows)}
    done = run_checks(all_checks(None))
    assert len(done) > 25
    for finding in done:
        assert re.sub(r"^(partition|gpu) \S+.*", r"\1", finding.name).split(": ")[-1] in known, finding.name
    source = "\n".join(path.read_text() for path in (ROOT / "launchers/doctor").glob("*.py"))
    for name in set(re.findall(r'(?:Finding|_finding)\(\s*"([^"{]+)"', source)):
        assert name in known | {"gpus"}, name


@pytest.mark.parametrize(
    "words,sentence",
    [
        (["none.yaml"], "no such config file"),
        (["--deep"], "give CONFIG"),
        (["--gpus-per-node", "8"], "give --nodes too"),
        (["--cluster", "--full"], "without --cluster"),
        (["--nodes", "2", "--deep", "configs/demo.yaml"], "without --cluster"),
        (["--cluster"], "give --nodes N"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    result = CliRunner().invoke(app, ["doctor", *words])
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)
