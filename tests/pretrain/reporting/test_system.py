"""Samples of nodes: they reach rank 0 under the node's name, and only while the node sends them."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain.reporting.node_metrics import MachineSampler, SystemMetrics, rates, sample_gpus
from tests.support.runs import wait_for

HOSTS = ["n1", "n1", "n2", "n2"]
SECONDS = 0.01


class Counting:
    """The n-th sample of a node is n. While it fails, there is no sample."""

    def __init__(self, start: int = 0):
        self.number, self.fails = start, False

    def __call__(self) -> dict[str, float]:
        if self.fails:
            raise OSError
        self.number += 1
        return {"cpu_percent": float(self.number)}


def node(folder: Path, rank: int, sampler: Counting | None = None, seconds: float = SECONDS) -> SystemMetrics:
    return SystemMetrics(folder / "system", rank, HOSTS, seconds, sampler or Counting())


def heard(main: SystemMetrics) -> dict[str, float]:
    """The values that arrive during some samples."""
    main.latest()
    time.sleep(20 * SECONDS)
    return main.latest()


def test_rank_0_hears_of_every_node_until_one_falls_silent(tmp_path):
    sampler = Counting(100)
    main, other = node(tmp_path, 0), node(tmp_path, 2, sampler)
    (tmp_path / "system").mkdir()  # with a file of an earlier part of the run, which is no news
    (tmp_path / "system" / "n2.json").write_text(json.dumps({"time": 9, "cpu_percent": 5.0}))
    main.start()
    early: dict[str, float] = {}
    wait_for(lambda: early.update(main.latest()) or early, 10)
    assert set(early) == {"system/n1/cpu_percent"}
    other.start()
    try:
        wait_for(lambda: set(heard(main)) == {"system/n1/cpu_percent", "system/n2/cpu_percent"}, 10)
        found = heard(main)
        assert found["system/n2/cpu_percent"] > 100 > found["system/n1/cpu_percent"]
        sampler.fails = True  # its file stays, like the file of a stopped process
        heard(main)
        assert (tmp_path / "system" / "n2.json").exists()
        assert set(heard(main)) == {"system/n1/cpu_percent"}, "an old value passes for a new one"
        (tmp_path / "system" / "n2.json").write_text('{"time": 3, "val')
        assert set(heard(main)) == {"system/n1/cpu_percent"}
    finally:
        main.close()
        other.close()
    assert not (tmp_path / "system" / "n1.json").exists()


@pytest.mark.parametrize(("rank", "seconds"), [(1, SECONDS), (3, SECONDS), (0, 0)])
def test_other_ranks_of_a_node_and_0_seconds_sample_nothing(tmp_path, rank, seconds):
    sampler = Counting()
    metrics = node(tmp_path, rank, sampler, seconds)
    metrics.start()
    assert heard(metrics) == {}
    assert sampler.number == 0
    metrics.close()


def test_a_node_whose_files_cannot_be_written_only_says_nothing(tmp_path):
    samplers = Counting(), Counting()
    main, other = node(tmp_path, 0, samplers[0]), node(tmp_path, 2, samplers[1])
    (tmp_path / "system").write_text("a file where the folder should be")
    main.start()
    other.start()
    assert heard(main) == {}
    assert all(sampler.number > 1 for sampler in samplers)
    main.close()
    other.close()


def test_rates_are_of_the_time_between_two_samples():
    before, after = {"disk_read": 1_000_000, "network_sent": 7, "gone": 1}, {"disk_read": 5_000_000, "network_sent": 3}
    assert rates(before, after, 2.0) == {"disk_read_mb_per_second": 2.0}, "a counter that was reset has no rate"
    assert rates({}, {"disk_read": 5}, 1.0) == {}
    assert rates(before, after, 0.0) == {}


def test_this_machine_is_sampled():
    now = iter([0.0, 2.0])
    found = MachineSampler(clock=lambda: next(now))()
    assert 0 < found["memory_percent"] < 100
    assert 0 <= found["cpu_percent"] <= 100
    assert all(value >= 0 for value in found.values())


@pytest.fixture
def gpus(monkeypatch):
    """The samples of two GPUs: number n draws 100 + n watts."""

    def sampled(**changed: Any) -> dict[str, float]:
        functions = {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "get_device_properties": lambda gpu: SimpleNamespace(total_memory=200),
            "utilization": lambda gpu: 50,
            "device_memory_used": lambda gpu: 50,
            "power_draw": lambda gpu: 100_000 + 1000 * gpu,
            "temperature": lambda gpu: 40 + gpu,
        }
        for name, function in (functions | changed).items():
            monkeypatch.setattr(torch.cuda, name, function)
        return sample_gpus()

    return sampled


def refuse(*_: Any) -> None:
    raise RuntimeError("Not Supported")


def test_gpus_are_sampled(gpus):
    of_both = {"utilization_percent": 50.0, "memory_percent": 25.0}
    of_gpus = [of_both | {"power_watts": 100.0 + n, "temperature_celsius": 40.0 + n} for n in range(2)]
    assert gpus() == {f"gpu{n}_{name}": value for n, values in enumerate(of_gpus) for name, value in values.items()}


def test_values_that_a_gpu_does_not_report_are_left_out(gpus):
    sampled = gpus(device_count=lambda: 1, power_draw=refuse)
    assert set(sampled) == {"gpu0_utilization_percent", "gpu0_memory_percent", "gpu0_temperature_celsius"}
    assert gpus(utilization=refuse, device_memory_used=refuse, power_draw=refuse, temperature=refuse) == {}
    assert gpus(is_available=lambda: False) == {}
