"""Figures for a model card from the result files of fine-tuning."""

import json

import pytest

from data_prep.common.errors import UserError
from evaluation.finetuning.result_file import Epoch, FinetuneResults, SeedResult
from pretrain.export import figures_in


def test_a_fine_tuning_has_an_interval_over_seeds_and_belongs_to_one_model(tmp_path):
    identity = {"task": "tokens", "epochs": 3, "lr": 5e-5, "valid": "0" * 64, "model": "1" * 64}
    seeds = [SeedResult(n, 1.0, [Epoch(1e9, {}, {"f1": f1})]) for n, f1 in enumerate((0.7, 0.8, 0.9), 1)]
    for count, interval in ((3, [0.8 - 4.302653 * 0.1 / 3**0.5, 0.8 + 4.302653 * 0.1 / 3**0.5]), (1, None)):
        FinetuneResults("f1", identity, {"f1": 0.1}, seeds[:count]).write(tmp_path / "results.json")
        (figure,) = figures_in(tmp_path / "results.json", "1" * 64, [])
        assert (figure.task_type, figure.metric_type) == ("token-classification", "f1")
        assert figure.metric_args.get("interval_95") == (pytest.approx(interval) if interval else None)
        assert f"mean of {count} seeds" in figure.metric_args["settings"]
        assert figures_in(tmp_path / "results.json", "2" * 64, []) == []
        FinetuneResults("f1", identity | {"init": "random"}, {"f1": 0.1}, seeds[:count]).write(tmp_path / "random.json")
        assert figures_in(tmp_path / "random.json", "1" * 64, []) == []


@pytest.mark.parametrize("kind", ["another file", "interval of one number"])
def test_another_json_file_is_refused(tmp_path, kind):
    pairs = {"score": "sum", "pairs": 3, "accuracy": 0.5, "interval": [0.4]}
    results = {"models": {str(tmp_path): {"pairs": pairs}}, "settings": {"pairs": {"file": "blimp.jsonl"}}}
    (tmp_path / "results.json").write_text(json.dumps(results if kind != "another file" else {}))
    with pytest.raises(UserError, match=r"no result file.*evaluate --json` or `maskwright finetune --json"):
        figures_in(tmp_path / "results.json", "", [tmp_path])
