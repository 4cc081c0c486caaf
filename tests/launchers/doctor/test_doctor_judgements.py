"""The judgements of `maskwright doctor` on measured values: GPUs, cores, memory, packages, Slurm, disks and servers."""

import dataclasses
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from launchers.doctor import gpu_checks, machine_checks, package_checks, storage_checks, tracking_checks
from launchers.doctor.check_list import checks_of_machine
from launchers.doctor.check_runner import Check, run_checks
from launchers.local import GIB, Finding, check_memory, check_room, check_writes
from launchers.slurm import client, slurm_findings
from pretrain.config import TrackConfig
from pretrain.distributed import Cores, Threads
from tests.pretrain.config.test_mlflow_address import BAD
from tests.support.configs import least_config

DISK, NFS = storage_checks.Mount("/", "ext4"), storage_checks.Mount("/", "nfs")
TRITON = "triton<3.8,>=3.6; platform_system == 'Linux' and extra == 'dev'"


def gpu(precision: str = "bf16", **changes: str) -> Finding:
    sound = gpu_checks.parse_gpus("0, NVIDIA H200, 580.65.06, 143771, 4, 9.0, Disabled, 0")[0]
    return gpu_checks.judge_gpu(dataclasses.replace(sound, **changes), precision)


def cores(usable: int, present: int, threads: int) -> Finding:
    return machine_checks.judge_cores(Cores(usable, "a quota"), present, Threads(threads, "a share"))


def attention(device: str, **sections: object) -> Finding:
    return gpu_checks.judge_attention(least_config(**sections), device, 9 if device == "cuda" else None)


def torch(installed: str | None) -> Finding:
    return package_checks.judge_version("torch<2.14,>=2.11", installed)


def python(version: str, system: str) -> Finding:
    return package_checks.judge_python(version, ">=3.10", system)


DROPOUT, AUTO = {"dropout": 0.1}, {"arch": "auto", "config": {"model_type": "bert"}}
FP32 = {"precision": "fp32", "fused_kernels": True, "compile": False}
FLASH_3 = {"flash_attention": 3}
COMPARED = "auto (the trial step compares Triton with plain"
JUDGED = [  # finding, status, words of its value or advice
    (gpu(), "ok", "NVIDIA H200"),
    (gpu(errors="2"), "fail", "2 uncorrected"),
    (gpu(errors="[N/A]"), "ok", ""),
    (gpu(capability="6.1"), "fail", "7.0"),
    (gpu(capability="7.5"), "fail", "bf16 needs capability 8.0"),
    (gpu("fp16", capability="7.5"), "ok", ""),
    (gpu(mig="Enabled"), "warn", "MIG"),
    (gpu(mig="[N/A]"), "ok", ""),
    (gpu(used="60000"), "warn", "another process"),
    (attention("cuda"), "ok", f", kernels {COMPARED}"),
    (attention("cuda", model=DROPOUT), "warn", "for flash attention, set model.dropout to 0"),
    (attention("cuda", train=FP32), "warn", "set train.precision to bf16 or fp16"),
    (attention("cpu", model=DROPOUT), "ok", ", kernels plain (no GPU)"),
    (attention("cpu", train=FLASH_3), "fail", "train.flash_attention is 3, which needs Hopper"),
    (attention("cuda", train=FLASH_3), "fail", "install flash-attn-3 from https://download.pytorch.org/whl/"),
    (attention("cuda", model=AUTO), "ok", ", kernels plain (model.arch is auto)"),
    (cores(8, 64, 8), "ok", "8 of 64 usable; a run with 1 process has 8 threads"),
    (cores(8, 8, 16), "warn", "OMP_NUM_THREADS"),
    (cores(1, 8, 1), "warn", "cluster.cpus_per_process"),
    (cores(1, 1, 1), "ok", ""),
    (machine_checks.judge_shm(64 << 20, 64 << 20), "fail", "--shm-size"),
    (machine_checks.judge_shm(GIB, GIB // 2), "warn", "--shm-size"),
    (machine_checks.judge_shm(8 * GIB, 8 * GIB), "ok", ""),
    (check_memory(64 * GIB, 60 * GIB), "ok", ""),
    (check_memory(64 * GIB, int(1.9 * GIB)), "warn", "--mem"),
    (check_memory(64 * GIB, GIB), "fail", "--mem"),  # less than 2%
    (torch("2.11.0+cu130"), "ok", ""),
    (torch("2.13.5"), "ok", ""),
    (torch("2.14.0"), "fail", "torch<2.14,>=2.11"),
    (torch(None), "fail", "torch<2.14,>=2.11"),
    (package_checks.judge_version(TRITON, None, needed=False), "skipped", ""),
    (package_checks.judge_version(TRITON, None), "fail", "triton"),
    (python("3.10.1", "Linux-6"), "ok", ""),
    (python("3.9.18", "Linux-6"), "fail", ">=3.10"),
    (python("3.12.1", "macOS-14"), "warn", "Linux"),
    (slurm_findings.judge_programs(()), "ok", ""),
    (slurm_findings.judge_programs(("salloc",)), "warn", "another login node"),
    (slurm_findings.judge_programs(client.PROGRAMS), "skipped", ""),
    (slurm_findings.judge_kill_wait(10), "warn", "maskwright stop"),
    (slurm_findings.judge_kill_wait(30), "ok", ""),
    (tracking_checks.judge_database(Path("m.db"), DISK, writable=True), "ok", ""),
    (tracking_checks.judge_database(Path("m.db"), NFS, writable=True), "warn", "mlflow server"),
    (tracking_checks.judge_database(Path("m.db"), DISK, writable=False), "fail", "track.uri"),
    (tracking_checks.judge_exposure("http", True, False), "ok", ""),
    (tracking_checks.judge_exposure("https", False, True), "ok", ""),
    (tracking_checks.judge_exposure("https", False, False), "warn", "basic-auth"),
    (tracking_checks.judge_exposure("http", False, True), "warn", "https"),
]


@pytest.mark.parametrize(("finding", "status", "words"), JUDGED, ids=lambda value: getattr(value, "name", None))
def test_a_value_is_judged_and_what_is_wrong_has_advice(finding: Finding, status: str, words: str) -> None:
    assert finding.status == status
    assert words in f"{finding.value} {finding.advice}"
    assert (status in ("warn", "fail")) == bool(finding.advice)


def test_gpus_of_the_list():
    assert gpu_checks.parse_gpus("No devices were found\n") == []
    of = {name: gpu_checks.Gpu("0", "x", "1", "1", "0", name, "", "0").has_bf16 for name in ("7.5", "8.0", "9.0")}
    assert of == {"7.5": False, "8.0": True, "9.0": True}


def test_folders(tmp_path):
    rooms = [check_room("x", tmp_path, *sizes).status for sizes in ((1,), (1, 1 << 60), (1 << 60,))]
    assert rooms == ["ok", "warn", "fail"]
    assert check_room("x", tmp_path / "none", least=1).status == "fail"
    assert check_writes("x", tmp_path).status in ("ok", "warn")
    assert check_writes("x", tmp_path / "none").status == "fail"
    assert not list(tmp_path.iterdir())


def test_a_compiler_is_checked_only_where_a_run_uses_one(monkeypatch):
    monkeypatch.setattr("launchers.doctor.check_list.gpu_count", lambda: 0)
    plain, compiled = (least_config(train={"compile": on}) for on in (False, True))
    for settings, gpus, needed in ((None, 0, False), (plain, 0, False), (compiled, 0, True), (None, 8, True)):
        assert package_checks.needs_compiler(settings, gpus) == needed
    for settings in (plain, compiled):
        assert ("compiler" in {check.name for check in checks_of_machine(settings)}) == (settings is compiled)
    for program, status in {sys.executable: "ok", "/no/such/compiler": "fail"}.items():
        monkeypatch.setenv("CXX", program)
        (finding,) = package_checks.check_compiler(gpus=0)
        assert finding.status == status
    assert not package_checks.is_always_needed(TRITON)


def test_mounts(tmp_path, monkeypatch):
    partition, mount = namedtuple("Partition", "mountpoint fstype"), storage_checks.Mount
    table = [partition("/", "overlay"), partition("/", "ext4"), partition(str(tmp_path / "disk"), "fuse.sshfs")]
    monkeypatch.setattr(storage_checks.psutil, "disk_partitions", lambda all: table)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk2").mkdir()
    assert storage_checks.mount_of(tmp_path / "disk2") == mount("/", "ext4"), "the last one mounted there"
    assert storage_checks.mount_of(tmp_path / "disk" / "not" / "there").kind == "fuse.sshfs"
    network = {kind: mount("/", kind).is_network for kind in ("fuse.sshfs", "nfs4", "fuse.overlayfs", "xfs")}
    assert network == {"fuse.sshfs": True, "nfs4": True, "fuse.overlayfs": False, "xfs": False}


def test_locks(tmp_path):
    assert storage_checks.is_exclusive(tmp_path / "lock")
    assert not storage_checks.is_exclusive(tmp_path / "lock", lambda *_: None), "a file system that grants every lock"


@pytest.mark.parametrize("uri", [uri for uri in BAD if uri])
def test_an_impossible_address(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (finding,) = run_checks([Check("tracking", "mlflow", lambda: tracking_checks.check_mlflow(TrackConfig()))])
    assert (finding.name, finding.status) == ("mlflow", "fail")
