"""An objective from outside: one class and its entry in the table; the config, batches, training and docs follow."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from data_prep.common.errors import UserError
from pretrain.config import OBJECTIVES, ObjectiveKind, json_schema
from pretrain.config_files import load_config
from pretrain.masking import Masked, Rows, Vocabulary, labelled
from pretrain.run import JournalReader
from tests.support import runs
from tests.support.ranks import run_ranks

MIXTURE = [{"kind": "every_third", "share": 0.5}, {"kind": "clm", "share": 0.5}]


class EveryThird:
    """Every third ordinary token of a row becomes [MASK] and is predicted."""

    flags = 0

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    def slots(self, seq_len: int) -> int:
        return seq_len // 3

    def __call__(self, rows: Rows, rate: float) -> Masked:
        ordinary = self.vocabulary.is_ordinary[rows.tokens]
        chosen = ordinary & (np.cumsum(ordinary, axis=1) % 3 == 0)
        seen = np.where(chosen, self.vocabulary.mask, rows.tokens)
        return labelled(seen, rows.tokens, chosen, self.slots(rows.tokens.shape[1]))


KIND = ObjectiveKind(
    name="every_third",
    title="every third token",
    predicts=lambda masking: "masking | every third token",
    create=lambda masking, vocabulary, seed, purpose: EveryThird(vocabulary),
    unread=("strategy", "rate", "replacement", "selection", "diffusion"),
)


@pytest.fixture
def added(monkeypatch):
    assert len(OBJECTIVES) == 6
    monkeypatch.setitem(OBJECTIVES._kinds, KIND.name, KIND)


def config_file(data: Path, run: Path, objective: object) -> Path:
    settings = {"train__steps": 12, "eval__every_steps": 6, "checkpoint__every_steps": 12, "track__uri": "none"}
    return runs.write_config(run.with_suffix(".yaml"), runs.tiny_config(data, run, objective=objective, **settings))


def test_config_schema_and_docs_know_it(added, data, tmp_path):
    path = config_file(data, tmp_path / "run", "every_third")
    load_config(path)
    for override, message in (
        ("objective=every_thrid", r"must be clm, .* or every_third, not 'every_thrid'\. Did you mean every_third"),
        ("masking.strategy=span", "masking.strategy is not read by objective every_third"),
        ("eval.masks=common", "eval.masks common is for objective mlm, not every_third"),
    ):
        with pytest.raises(UserError, match=message):
            load_config(path, [override])
    assert "every_third" in json.dumps(json_schema()), "of which the page of all keys is made, too"


def test_a_run_learns_it(data, tmp_path):
    run = tmp_path / "run"
    run_ranks(__name__, 1, "--config", str(config_file(data, run, MIXTURE)))
    metrics = [entry.metrics for entry in JournalReader(run / "journal.jsonl").entries()]
    losses = [entry["train/loss/every_third"] for entry in metrics if "train/loss/every_third" in entry]
    assert len(losses) == 12
    assert losses[-1] < losses[0] < 6
    assert any(0 < entry.get("eval/loss/every_third", 0) < 6 for entry in metrics)


if __name__ == "__main__":  # a rank of the run, which knows the objective too
    from pretrain.train import main

    OBJECTIVES.add(KIND)
    sys.exit(main())
