"""Training with the masking kernel in Triton's interpreter: the same run bit for bit."""

import os
from pathlib import Path

import pytest

from pretrain.reporting import replay
from pretrain.run import JournalReader
from tests.support import runs, text_data

pytest.importorskip("triton", reason="the kernel needs triton, which is for Linux")


def journal(run: Path) -> list[tuple]:
    return [
        (entry.step, entry.metrics["train/loss"], entry.metrics["train/grad_norm"], entry.metrics["speed/tflops"] > 0)
        + (entry.batch["checksum"], entry.batch["settings"])
        for entry in JournalReader(run / "journal.jsonl").entries(batches=True)
        if entry.batch
    ]


@pytest.mark.slow
def test_the_kernel_trains_the_same_run(tmp_path, monkeypatch):
    data = text_data.text_data(tmp_path)
    found = []
    for device in ("cpu", "gpu"):
        config = runs.tiny_config(data, tmp_path / device, train__steps=4, checkpoint__every_steps=4)
        config["masking"] = {"strategy": {"span": 1, "token": 1}, "device": device}
        path = runs.write_config(tmp_path / f"{device}.yaml", config)
        if device == "gpu" and not os.environ.get("CUDA_VISIBLE_DEVICES"):
            refused = runs.maskwright("train", path, "--procs", "1")
            assert refused.returncode == 1
            assert "masking.device gpu needs a GPU; set it to cpu: the masks are the same" in refused.stderr
            monkeypatch.setenv("TRITON_INTERPRET", "1")
        result = runs.maskwright("train", path, "--procs", "1")
        assert result.returncode == 0, result.stdout + result.stderr
        found.append(journal(tmp_path / device))
    assert len(found[0]) == 4
    assert found[0] == found[1]
    monkeypatch.delenv("TRITON_INTERPRET")
    replay(tmp_path / "gpu", 3)  # raises unless the batch has the checksum in the journal
