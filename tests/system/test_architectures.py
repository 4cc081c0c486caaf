"""Runs with models of other forms: trained, exported, loaded by transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pretrain.export import export_run
from tests.support import runs, text_data

SIZE = {"layers": 3, "hidden": 32, "heads": 2}
ELECTRA = {"model_type": "electra", "embedding_size": 16, "hidden_size": 32, "intermediate_size": 48}
ELECTRA |= {"num_hidden_layers": 2, "num_attention_heads": 2}


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
def test_train_and_export(name, model, procs, data, tmp_path):
    settings = {"train__steps": 3, "checkpoint__every_steps": 3, "zero__stage": 2}
    run = runs.trained(data, tmp_path / "run", procs, model=model, **settings)
    assert list(runs.losses(run)) == [1, 2, 3]
    out = export_run(run, None, tmp_path / "export")
    loaded = AutoModelForMaskedLM.from_pretrained(out)
    assert type(loaded).__name__ == name
    tokenizer = AutoTokenizer.from_pretrained(out)
    with torch.no_grad():  # two texts: RoBERTa has no second type of segment
        assert torch.isfinite(loaded(**tokenizer("the ship", "sails", return_tensors="pt")).logits).all()
    for ours, theirs in {"cls": ("cls", "bos"), "sep": ("sep", "eos"), "pad": ("pad",), "mask": ("mask",)}.items():
        ids = {getattr(loaded.config, f"{name}_token_id", None) for name in theirs}
        assert ids <= {getattr(tokenizer, f"{ours}_token_id"), None}
