"""A run with averaged weights: evaluated, resumed and exported."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data_prep.common.errors import UserError
from pretrain import checkpoint
from pretrain.export import export_run
from pretrain.export.hugging_face_export import native_state
from pretrain.model import build
from pretrain.run import JournalReader
from tests.support import runs, text_data
from tests.support.held_out import held_out_loss

STEPS, DECAY = 4, 0.6


@pytest.mark.slow
def test_averaged_weights_are_evaluated_and_exported(tmp_path):
    """The average of the weights in all checkpoints, over a resume, under ZeRO 2 on two processes."""
    data, run = text_data.text_data(tmp_path), tmp_path / "run"
    every = {"checkpoint__every_steps": 1, "checkpoint__keep": 9, "eval__every_steps": 2}
    optim = {"name": "muon", "lr": 0.02, "ema": DECAY}
    config = runs.config_file(data, run, **every, optim=optim, train__steps=STEPS, zero__stage=2)
    for steps in (2, STEPS):  # the schedule follows; what matters here are the weights that came of it
        runs.succeed("train", config, f"train.steps={steps}", "--procs", "2")
    path = run / "checkpoints" / f"step-{STEPS:08d}"
    saved = checkpoint.read(path)
    wanted = {name: value.double() for name, value in build(saved.state["shape"], seed=7).state_dict().items()}
    for step in range(1, STEPS + 1):
        now = native_state(checkpoint.read(path.with_name(f"step-{step:08d}")))
        wanted = {name: DECAY * wanted[name] + (1 - DECAY) * now[name].double() for name in now}
    found = native_state(saved, averaged=True)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    encoder = build(saved.state["shape"], seed=0)
    encoder.load_state_dict(found)
    loss = held_out_loss(encoder, data)
    journal = {entry.step: entry.metrics for entry in JournalReader(run / "journal.jsonl").entries()}
    assert journal[STEPS]["eval/ema_loss"] == pytest.approx(loss, rel=1e-5)
    assert journal[STEPS]["eval/loss"] != pytest.approx(loss, rel=1e-4)
    plain, averaged = export_run(run, None, None), export_run(run, None, None, averaged=True)
    assert (plain.name, averaged.name) == (path.name, f"{path.name}-ema")
    assert f"EMA, decay {DECAY}" in (averaged / "README.md").read_text()
    name = "bert.encoder.layer.1.output.dense.weight"
    weights = [load_file(folder / "model.safetensors")[name] for folder in (plain, averaged)]
    assert torch.equal(weights[1], found["layers.1.mlp_out.weight"])
    assert not torch.equal(weights[0], weights[1])


def test_a_run_without_averages_is_said_to_have_none(tmp_path):
    found = checkpoint.Checkpoint(tmp_path / "step-00000001", 1, {"config": {"optim": {"ema": None}}}, {})
    with pytest.raises(UserError, match=r"step-00000001 has no averaged weights.*export it without --ema"):
        native_state(found, averaged=True)
