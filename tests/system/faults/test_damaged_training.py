"""Damaged data in a real run: named and fatal by default, replaced within a budget, equal on every rank."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from data_prep.format import Dataset
from pretrain.run import JournalReader
from tests.support import runs
from tests.support.datasets import flip

STEPS = 6


@pytest.fixture
def data(data, tmp_path) -> Path:
    """A copy to damage."""
    shutil.copytree(data, tmp_path / "data")
    return tmp_path / "data"


def shard(data: Path) -> Path:
    (path,) = (data / "train" / "shards").glob("*.tar")
    return path


def damage(data: Path, block: int) -> None:
    """Change one bit of a block's tokens."""
    flip(shard(data), int(Dataset(data / "train").table[block]["tokens_offset"]) + 3)


def train(data: Path, run: Path, processes: int, **settings):
    settings = {"train__steps": STEPS, "train__global_batch_size": 256, "data__window_blocks": 2, **settings}
    config = runs.config_file(data, run, **settings)
    return runs.maskwright("train", config, "--procs", str(processes))


def test_a_flipped_bit_ends_the_run_with_shard_and_block_named(data, tmp_path):
    for block in range(Dataset(data / "train").n_blocks):
        damage(data, block)
    result = train(data, tmp_path / "run", 2)
    assert result.returncode == 1
    status = runs.status(tmp_path / "run")
    assert status["state"] == "failed"
    assert f"{shard(data)} is damaged: the tokens of block 00000_" in status["reason"]
    assert "checksum" in status["reason"]
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_within_the_budget_all_ranks_train_on_the_same_stand_ins(data, tmp_path):
    lengths = [int(Dataset(data / "train").document_lengths(block).sum()) for block in range(3)]
    damage(data, 0)
    damage(data, 2)
    found = {}
    for processes in (1, 2):
        run = tmp_path / f"run{processes}"
        result = train(data, run, processes, data__damage_budget=100_000)
        assert result.returncode == 0, result.stderr
        assert "replace it" in result.stderr
        entries = JournalReader(run / "journal.jsonl").entries(batches=True)
        assert [entry.step for entry in entries] == list(range(1, STEPS + 1))
        found[processes] = [(entry.batch, entry.metrics["data/replaced_tokens"]) for entry in entries]
    assert found[1] == found[2]
    epochs = entries[-1].metrics["data/epoch"]
    assert epochs >= 1, "every block was met"
    assert found[2][-1][1] >= lengths[0] + lengths[2]
    spent = int(found[1][-1][1])
    result = train(data, tmp_path / "run1", 1, data__damage_budget=spent, train__steps=STEPS + 6)
    assert result.returncode == 1, "what was spent before a resume counts"
    assert f"more than data.damage_budget ({spent})" in runs.status(tmp_path / "run1")["reason"]


def test_beyond_the_budget_all_ranks_end_together(data, tmp_path):
    content = shard(data).read_bytes()
    shard(data).write_bytes(content[: len(content) // 2])
    result = train(data, tmp_path / "run", 2, data__damage_budget=500)
    assert result.returncode == 1
    reason = runs.status(tmp_path / "run")["reason"]
    assert "more than data.damage_budget (500)" in reason
    assert f"{shard(data)} has {len(content) // 2} bytes" in result.stderr
    assert np.isfinite(runs.losses(tmp_path / "run")[1])


def test_a_short_shard_is_found_before_the_first_step(data, tmp_path):
    content = shard(data).read_bytes()
    shard(data).write_bytes(content[:-512])
    result = train(data, tmp_path / "run", 1)
    assert result.returncode == 1
    assert f"{shard(data)} has {len(content) - 512} bytes, the manifest has {len(content)}" in result.stderr
    assert not (tmp_path / "run").exists()
