"""Averages of weights: checkpoints merged through the command line, and those that a run keeps."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pretrain import checkpoint
from pretrain.export import export_run
from pretrain.export.hugging_face_export import native_state
from pretrain.model import build
from pretrain.run import JournalReader
from tests.support import runs, text_data
from tests.support.held_out import held_out_loss
from tests.support.in_process import refused

STEPS = (4, 6, 10)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with checkpoints of steps 2, 4, 6, 8 and 10; that of step 8 is deleted."""
    folder = tmp_path_factory.mktemp("run")
    data = text_data.text_data(folder)
    settings = {"train__steps": 10, "checkpoint": {"every_steps": 2, "keep": 9}, "eval__every_steps": 100}
    mixture = [{"kind": "mlm", "share": 0.5}, {"kind": "clm", "share": 0.5}]
    runs.trained(data, folder / "run", objective=mixture, **settings)
    (folder / "run/checkpoints/step-00000008").rename(folder / "run/checkpoints/step-00000008.aside-1")
    return folder / "run"


def merge(*arguments: str | Path) -> str:
    return runs.succeed("merge", *arguments).stdout


def test_checkpoints_are_averaged_and_evaluated(run, tmp_path):
    out, report = tmp_path / "merge", tmp_path / "merge.json"
    shown = merge(f"{run}@4..10", "--weights", "linear-decay", "--out", out, "--json", report)
    weights = {4: 2 / 12, 6: 6 / 12, 10: 4 / 12}
    exports = {step: export_run(run, step, tmp_path / f"step-{step}") for step in STEPS}
    states = {step: AutoModelForMaskedLM.from_pretrained(folder).state_dict() for step, folder in exports.items()}
    for name, value in AutoModelForMaskedLM.from_pretrained(out).state_dict().items():
        wanted = sum(weights[step] * states[step][name].double() for step in STEPS)
        torch.testing.assert_close(value, wanted.float(), rtol=2e-7, atol=0, msg=name)
    assert len(AutoTokenizer.from_pretrained(out)) == AutoTokenizer.from_pretrained(exports[10]).vocab_size
    card = (out / "README.md").read_text()
    assert "| steps | 10 of 10 |\n| weights | a merge of 3 models (linear-decay) |" in card
    assert "| step-00000004 | 0.1667 |\n| step-00000006 | 0.5 |\n| step-00000010 | 0.3333 |" in card

    found = json.loads(report.read_text())
    assert {one["step"]: one["weight"] for one in found["models"]} == pytest.approx(weights)
    valid = run.parent / "data/valid"
    runs.succeed("evaluate", out, *exports.values(), "--data", valid, "--json", tmp_path / "evaluate.json")
    alone = json.loads((tmp_path / "evaluate.json").read_text())
    assert list(found["evaluation"]["models"].values()) == list(alone["models"].values())
    assert found["evaluation"]["settings"] == alone["settings"]
    for results in alone["models"].values():
        assert f"{results['held_out']['loss']:.4f}" in shown


def test_views_folders_and_no_evaluation(run, tmp_path):
    """The parts are checkpoints of one view, and the merge is in turn merged with an export."""
    checkpoints = [run / "checkpoints" / f"step-{step:08d}" for step in (2, 6)]
    shown = merge(*checkpoints, "--view", "causal", "--data", "none", "--out", tmp_path / "causal")
    assert "held-out" not in shown
    assert "| attention | causal |" in (tmp_path / "causal/README.md").read_text()
    export = export_run(run, 10, tmp_path / "export")
    assert "held-out" not in merge(tmp_path / "causal", run / "exports/step-00000002-causal", "--out", tmp_path / "two")
    names = [tmp_path / "causal", run / "exports/step-00000002-causal", run / "exports/step-00000006-causal"]
    one, first, second = (load_file(folder / "model.safetensors") for folder in names)
    for name, value in one.items():
        torch.testing.assert_close(value, (first[name] + second[name]) / 2, rtol=1e-6, atol=1e-9, msg=name)
    for arguments, said in (
        ((export, tmp_path / "causal"), "architectures is .*BertForMaskedLM.* and .*BertLMHeadModel"),
        ((export, tmp_path / "two", "--data", tmp_path / "none"), "No data set at"),
    ):
        assert re.search(said, refused("merge", *arguments, "--out", tmp_path / "no"))
    assert not (tmp_path / "no").exists()


AVERAGED_STEPS, DECAY = 4, 0.6


@pytest.mark.slow
def test_averaged_weights_are_evaluated_and_exported(tmp_path):
    """Under ZeRO 2 on two processes. tests/pretrain/optim/test_optimizers.py has the averages themselves."""
    data, optim = text_data.text_data(tmp_path), {"name": "muon", "lr": 0.02, "ema": DECAY}
    settings = {"train__steps": AVERAGED_STEPS, "eval__every_steps": 2, "zero__stage": 2}
    run = runs.trained(data, tmp_path / "run", 2, optim=optim, **settings)
    path = run / "checkpoints" / f"step-{AVERAGED_STEPS:08d}"
    saved = checkpoint.read(path)
    found = native_state(saved, averaged=True)
    encoder = build(saved.state["shape"], seed=0)
    encoder.load_state_dict(found)
    loss = held_out_loss(encoder, data)
    journal = {entry.step: entry.metrics for entry in JournalReader(run / "journal.jsonl").entries()}
    assert journal[AVERAGED_STEPS]["eval/ema_loss"] == pytest.approx(loss, rel=1e-5)
    assert journal[AVERAGED_STEPS]["eval/loss"] != pytest.approx(loss, rel=1e-4)
    plain, averaged = export_run(run, None, None), export_run(run, None, None, averaged=True)
    assert (plain.name, averaged.name) == (path.name, f"{path.name}-ema")
    assert f"EMA, decay {DECAY}" in (averaged / "README.md").read_text()
    name = "bert.encoder.layer.1.output.dense.weight"
    weights = [load_file(folder / "model.safetensors")[name] for folder in (plain, averaged)]
    assert torch.equal(weights[1], found["layers.1.mlp_out.weight"])
    assert not torch.equal(weights[0], weights[1])
