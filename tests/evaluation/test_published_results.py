"""Figures for a model card from the result files of fine-tuning."""

import json
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from evaluation.finetuning import model_digest
from evaluation.finetuning.result_file import Epoch, FinetuneResults, SeedResult
from evaluation.published_results import figures_in


def model(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    for name, content in (("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model.safetensors", weights)):
        (folder / name).write_bytes(content)
    return folder


def test_a_fine_tuning_has_an_interval_over_seeds_and_belongs_to_one_model(tmp_path):
    one, other = model(tmp_path / "one", b"1"), model(tmp_path / "other", b"2")
    identity = {"task": "tokens", "epochs": 3, "lr": 5e-5, "valid": "0" * 64, "model": model_digest(one)}
    seeds = [SeedResult(n, 1.0, [Epoch(1e9, {}, {"f1": f1})]) for n, f1 in enumerate((0.7, 0.8, 0.9), 1)]
    for count, interval in ((3, (0.8 - 4.302653 * 0.1 / 3**0.5, 0.8 + 4.302653 * 0.1 / 3**0.5)), (1, None)):
        FinetuneResults("f1", identity, {"f1": 0.1}, seeds[:count]).write(tmp_path / "results.json")
        (figure,) = figures_in(tmp_path / "results.json", one, [])
        assert (figure.task, figure.metric) == ("token-classification", "f1")
        assert figure.interval == (pytest.approx(interval) if interval else None)
        assert f"mean of {count} seeds" in figure.settings
        assert figures_in(tmp_path / "results.json", other, []) == []


def test_an_interval_of_one_number_is_refused(tmp_path):
    pairs = {"score": "sum", "pairs": 3, "accuracy": 0.5, "interval": [0.4]}
    results = {"models": {str(tmp_path): {"pairs": pairs}}, "settings": {"pairs": {"file": "blimp.jsonl"}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match=r"no result file.*evaluate --json"):
        figures_in(tmp_path / "results.json", tmp_path, [])


def test_another_json_file_is_refused(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match=r"no result file.*finetune --json"):
        figures_in(tmp_path / "results.json", tmp_path, [])
