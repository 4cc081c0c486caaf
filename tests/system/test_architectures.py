"""Runs with models of other forms: trained, resumed bit for bit, exported, loaded by transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pretrain.export import export_run
from tests.support import runs, text_data

SIZE = {"layers": 3, "hidden": 32, "heads": 2}
ELECTRA = {
    "model_type": "electra",
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return text_data.text_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "procs"),
    [
        ("ModernBertForMaskedLM", {"arch": "modernbert", "size": SIZE, "dropout": 0.1}, 2),
        ("EuroBertForMaskedLM", {"arch": "eurobert", "size": SIZE | {"kv_heads": 1}}, 2),
        ("EsmForMaskedLM", {"arch": "esm", "size": SIZE}, 1),
        ("ElectraForMaskedLM", {"arch": "auto", "config": ELECTRA}, 1),
    ],
)
def test_train_resume_and_export(name, model, procs, data, tmp_path):
    """A run that is stopped after half its steps and resumed has the losses of an uninterrupted run, with dropout."""
    found = []
    for run, parts in (("whole", [6]), ("halves", [3, 6])):
        for steps in parts:
            config = runs.tiny_config(data, tmp_path / run, train__steps=6, checkpoint__every_steps=3, zero__stage=2)
            config["model"] = model
            path = runs.write_config(tmp_path / f"{run}.yaml", config)
            schedule = ["schedule.kind=wsd", "schedule.decay_fraction=0", f"train.steps={steps}"]
            result = runs.maskwright("train", path, *schedule, "--procs", str(procs))
            assert result.returncode == 0, result.stdout + result.stderr
        found.append(runs.losses(tmp_path / run))
    assert list(found[0]) == [1, 2, 3, 4, 5, 6]
    assert found[0] == found[1]
    out = export_run(tmp_path / "halves", None, tmp_path / "export")
    loaded = AutoModelForMaskedLM.from_pretrained(out)
    assert type(loaded).__name__ == name
    tokenizer = AutoTokenizer.from_pretrained(out)
    with torch.no_grad():  # two texts: RoBERTa has no second type of segment
        assert torch.isfinite(loaded(**tokenizer("the ship", "sails", return_tensors="pt")).logits).all()
    for ours, theirs in {"cls": ("cls", "bos"), "sep": ("sep", "eos"), "pad": ("pad",), "mask": ("mask",)}.items():
        ids = {getattr(loaded.config, f"{name}_token_id", None) for name in theirs}
        assert ids <= {getattr(tokenizer, f"{ours}_token_id"), None}
