"""Optimizer state on disk: ZeRO 3 with zero.offload nvme."""

import os
from pathlib import Path
from typing import Any

import pytest
from deepspeed.ops.op_builder.cpu import AsyncIOBuilder

from tests.support import runs
from tests.support.ranks import run_ranks

needs_libaio = pytest.mark.skipif(
    not os.environ.get("MASKWRIGHT_REQUIRE_LIBAIO") and not AsyncIOBuilder().is_compatible(), reason="needs libaio-dev"
)


@needs_libaio
@pytest.mark.slow
def test_training_from_disk_is_training_from_memory(tmp_path):
    run_ranks("tests.distributed.nvme_worker", 2, str(tmp_path), timeout=900)  # it builds an extension at first


@needs_libaio
@pytest.mark.slow
def test_a_run_resumes_from_disk_and_leaves_nothing_there(tmp_path, monkeypatch):
    data, disk = runs.tiny_data(tmp_path / "data"), tmp_path / "disk"
    large = {"model__size": {"layers": 2, "hidden": 256, "heads": 4}, "train__precision": "bf16"}

    def train(run: Path, zero: dict[str, Any], **settings: Any) -> int:
        config = runs.tiny_config(data, run, zero={"stage": 3, **zero}, **large, **settings)
        return runs.maskwright("train", runs.write_config(tmp_path / "c.yaml", config), "--procs", "2").returncode

    swapped = {"offload": "nvme", "nvme_path": str(disk)}
    assert train(tmp_path / "memory", {"offload": "cpu"}) == 0
    monkeypatch.setenv("MASKWRIGHT_FAULTS", "nan_gradient:rank=1,step=12")
    assert train(tmp_path / "run", swapped, guard__max_skipped=1) == 1
    assert list(disk.iterdir()) == [], "a run that fails cleans up, too"
    monkeypatch.delenv("MASKWRIGHT_FAULTS")
    assert train(tmp_path / "run", swapped) == 0
    assert runs.losses(tmp_path / "run") == runs.losses(tmp_path / "memory")
    assert list(disk.iterdir()) == []
