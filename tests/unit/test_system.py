"""What nodes do reaches rank 0 under their own names, and only while they say it."""

import builtins
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.system.exchange import SystemMetrics
from pretrain.system.gpu import GpuSampler, visible
from pretrain.system.host import HostSampler, rates
from tests.support.runs import wait_for

HOSTS = ["n1", "n1", "n2", "n2"]
SECONDS = 0.01


class Counting:
    """The n-th sample of a node is n."""

    def __init__(self, start: int = 0):
        self.number = start

    def __call__(self) -> dict[str, float]:
        self.number += 1
        return {"cpu_percent": float(self.number)}


def node(folder: Path, rank: int, seconds: float = SECONDS, start: int = 0) -> SystemMetrics:
    return SystemMetrics(folder / "system", rank, HOSTS, seconds, Counting(start))


def heard(main: SystemMetrics) -> dict[str, float]:
    """What comes in during some samples."""
    main.latest()
    time.sleep(20 * SECONDS)
    return main.latest()


def test_rank_0_hears_of_every_node_until_one_falls_silent(tmp_path):
    main, other = node(tmp_path, 0), node(tmp_path, 2, start=100)
    main.start()
    other.start()
    try:
        wait_for(lambda: set(heard(main)) == {"system/n1/cpu_percent", "system/n2/cpu_percent"}, 10)
        found = heard(main)
        assert found["system/n2/cpu_percent"] > 100 > found["system/n1/cpu_percent"]
        other._closed.set()  # as a process that is stopped: its file stays
        other._thread.join()
        heard(main)
        assert (tmp_path / "system" / "n2.json").exists()
        assert set(heard(main)) == {"system/n1/cpu_percent"}, "an old value passes for a new one"
        (tmp_path / "system" / "n2.json").write_text('{"number": 3, "val')
        assert set(heard(main)) == {"system/n1/cpu_percent"}
    finally:
        main.close()
        other.close()
    assert not (tmp_path / "system" / "n1.json").exists()


def test_what_an_earlier_part_of_the_run_left_is_no_news(tmp_path):
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "n2.json").write_text(json.dumps({"number": 9, "values": {"cpu_percent": 5.0}}))
    main = node(tmp_path, 0)
    main.start()
    found: dict[str, float] = {}
    wait_for(lambda: found.update(main.latest()) or found, 10)
    main.close()
    assert set(found) == {"system/n1/cpu_percent"}


@pytest.mark.parametrize(("rank", "seconds"), [(1, SECONDS), (3, SECONDS), (0, 0)])
def test_other_ranks_of_a_node_and_0_seconds_sample_nothing(tmp_path, rank, seconds):
    metrics = node(tmp_path, rank, seconds)
    metrics.start()
    assert not metrics._thread.is_alive()
    assert metrics.latest() == {}
    metrics.close()


def test_a_node_whose_files_cannot_be_written_only_says_nothing(tmp_path):
    main, other = node(tmp_path, 0), node(tmp_path, 2)
    (tmp_path / "system").write_text("a file where the folder should be")
    main.start()
    other.start()
    assert heard(main) == {}
    assert main._thread.is_alive()
    assert other._thread.is_alive()
    main.close()
    other.close()


def test_rates_are_of_the_time_between_two_samples():
    before, after = {"disk_read": 1_000_000, "network_sent": 7, "gone": 1}, {"disk_read": 5_000_000, "network_sent": 3}
    assert rates(before, after, 2.0) == {"disk_read_mb_per_second": 2.0}, "a counter that began anew has no rate"
    assert rates({}, {"disk_read": 5}, 1.0) == {}
    assert rates(before, after, 0.0) == {}


def test_this_machine_is_sampled():
    now = iter([0.0, 2.0])
    found = HostSampler(gpus=lambda: {"gpu0_power_watts": 300.0}, clock=lambda: next(now))()
    assert 0 < found["memory_percent"] < 100
    assert 0 <= found["cpu_percent"] <= 100
    assert found["gpu0_power_watts"] == 300
    assert all(value >= 0 for value in found.values())


class NVMLError(Exception):
    pass


def _refuse(_: Any) -> None:
    raise NVMLError("Not Supported")


def nvml(**changed: Any) -> SimpleNamespace:
    """As much of the package as is used: of three GPUs, number n draws 100 + n watts."""
    functions = {
        "NVMLError": NVMLError,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-c": 2}[uuid],
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=50, memory=3),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=200, used=50, free=150),
        "nvmlDeviceGetPowerUsage": lambda gpu: 100_000 + 1000 * gpu,
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 40 + gpu,
    }
    return SimpleNamespace(**(functions | changed))


@pytest.fixture
def gpus(monkeypatch):
    def sampler(visible: str | None = None, **changed: Any) -> GpuSampler:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setitem(sys.modules, "pynvml", nvml(**changed))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return GpuSampler()

    return sampler


def test_gpus_are_numbered_as_pytorch_numbers_them(gpus):
    assert gpus("GPU-c,0")() == {
        "gpu0_utilization_percent": 50.0,
        "gpu0_memory_percent": 25.0,
        "gpu0_power_watts": 102.0,
        "gpu0_temperature_celsius": 42.0,
        "gpu1_utilization_percent": 50.0,
        "gpu1_memory_percent": 25.0,
        "gpu1_power_watts": 100.0,
        "gpu1_temperature_celsius": 40.0,
    }


def test_what_a_gpu_does_not_tell_is_left_out(gpus):
    assert set(gpus("0", nvmlDeviceGetPowerUsage=_refuse)()) == {
        "gpu0_utilization_percent",
        "gpu0_memory_percent",
        "gpu0_temperature_celsius",
    }


def test_gpus_without_driver_or_package_are_a_problem_and_no_gpu_is_none(gpus, monkeypatch):
    broken = gpus(nvmlInit=lambda: _refuse(None))
    assert (broken(), broken.problem) == ({}, "no figures of GPUs (Not Supported)")
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    without = GpuSampler()
    assert without() == {}
    assert "nvidia-ml-py is missing" in str(without.problem)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (GpuSampler()(), GpuSampler().problem) == ({}, None)


@pytest.mark.parametrize(
    ("variable", "wanted"),
    [
        (None, ["0", "1", "2"]),
        ("2, 0", ["2", "0"]),
        ("", []),
        ("0,-1,1", ["0"]),
        ("0,7,1", ["0"]),
        ("GPU-c,MIG-x", ["GPU-c", "MIG-x"]),
    ],
)
def test_visible_gpus_are_those_of_cuda(monkeypatch, variable, wanted):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible(3) == wanted
