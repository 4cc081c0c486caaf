"""Training with the layer kernels in Triton's interpreter: the losses of plain torch within rounding."""

import os

import pytest

from pretrain.run import JournalReader
from tests.support import runs

pytest.importorskip("triton", reason="the kernels need triton, which is for Linux")


@pytest.mark.slow
def test_the_kernels_train_the_same_run(tmp_path, monkeypatch):
    """Under ZeRO-3, whose weights come and go around each module."""
    data = runs.tiny_data(tmp_path)
    losses = []
    for fused in (False, True):
        config = runs.tiny_config(data, tmp_path / f"fused {fused}", train__steps=2, train__fused_kernels=fused)
        config |= {"zero": {"stage": 3}, "eval": {"every_steps": 2, "rows": 8}}
        config["deepspeed"] = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
        config["model"] = {"arch": "modernbert", "size": {"layers": 2, "hidden": 24, "heads": 2}}
        path = runs.write_config(tmp_path / f"{fused}.yaml", config)
        if fused and not os.environ.get("CUDA_VISIBLE_DEVICES"):
            monkeypatch.setenv("TRITON_INTERPRET", "1")
        result = runs.maskwright("train", path, "--procs", "1")
        assert result.returncode == 0, result.stdout + result.stderr
        entries = JournalReader(tmp_path / f"fused {fused}/journal.jsonl").entries()
        names = ("train/loss", "train/grad_norm", "eval/loss")
        losses.append([entry.metrics[name] for entry in entries for name in names if name in entry.metrics])
    assert len(losses[0]) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1] != losses[0], "the kernels were not used"
