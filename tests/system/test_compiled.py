"""Training with a compiled model, with kernels or with activation checkpointing: the same losses."""

import os
import shutil
from pathlib import Path

import pytest

from pretrain.run import JournalReader
from tests.support import runs

NAMES = ("train/loss", "train/grad_norm", "eval/loss")


def trained(data: Path, run: Path, procs: int, *overrides: str) -> list[float]:
    path = runs.config_file(data, run, train__steps=3, eval={"every_steps": 3, "rows": 8})
    runs.succeed("train", path, *overrides, "--procs", str(procs))
    entries = JournalReader(run / "journal.jsonl").entries()
    values = [entry.metrics[name] for entry in entries for name in NAMES if name in entry.metrics]
    assert len(values) == 7
    return values


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++ on a CPU")
@pytest.mark.slow
def test_a_compiled_model_trains_the_same_run(data, tmp_path):
    plain = trained(data, tmp_path / "plain", 1, "zero.stage=2")
    compiled = trained(data, tmp_path / "compiled", 1, "zero.stage=2", "train.compile=true")
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert compiled != plain, "nothing was compiled"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_layers_computed_again_train_the_same_run_bit_for_bit(stage, data, tmp_path):
    """Under ZeRO-3, whose weights come and go around each module; with dropout."""
    ways = [f"zero.stage={stage}", "model.arch=modernbert", "model.dropout=0.2"]
    if stage == 3:
        ways.append("deepspeed.zero_optimization.stage3_param_persistence_threshold=0")
    plain = trained(data, tmp_path / "plain", 2, *ways)
    again = trained(data, tmp_path / "again", 2, *ways, "train.activation_checkpointing=true")
    assert again == plain


@pytest.mark.slow
def test_kernels_in_triton_s_interpreter_train_the_same_run(data, tmp_path, monkeypatch):
    """Under ZeRO-3, whose weights come and go around each module."""
    pytest.importorskip("triton", reason="the kernels need triton, which is for Linux")
    ways = ["zero.stage=3", "model.arch=modernbert", "model.size={layers: 2, hidden: 24, heads: 2}"]
    ways.append("deepspeed.zero_optimization.stage3_param_persistence_threshold=0")
    plain = trained(data, tmp_path / "plain", 1, *ways, "train.fused_kernels=false")
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    fused = trained(data, tmp_path / "fused", 1, *ways, "train.fused_kernels=true")
    assert fused == pytest.approx(plain, rel=1e-4)
    assert fused != plain, "the kernels were not used"
