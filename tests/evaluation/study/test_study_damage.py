"""Damaged or hostile files of a study: nothing outside the study is removed, no wrong type is passed on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from evaluation.study import Study
from evaluation.study.study_file import EVALUATION, FINETUNING, RECORD
from evaluation.study.study_results import figures
from tests.support.hostile_json import DIGITS, NESTED
from tests.support.study_runs import Pretended, kept, run

ARM = {"name": "strategy=token", "overrides": {"masking.strategy": "token"}, "config": {"train": {"steps": 40}}}


def test_a_result_that_is_a_link_is_measured_again(config, tmp_path: Path) -> None:
    study = kept(config, seeds=1)
    run(study)
    place = study.runs[0].folder
    outside = tmp_path / "letters.json"
    (place / EVALUATION).rename(outside)
    (place / EVALUATION).symlink_to(outside)
    letters = outside.read_text()
    assert run(study)[::2] == ([], ["evaluate strategy=token/seed-1"])
    assert not (place / EVALUATION).is_symlink()
    assert outside.read_text() == letters
    assert run(study)[2] == []


@pytest.mark.parametrize("text", [NESTED, DIGITS, f'{{"steps": {DIGITS}}}', "\0", "pipe"])
def test_damaged_results_are_measured_again(config, text: str) -> None:
    study = kept(config, seeds=1)
    run(study)
    place = study.runs[0].folder
    for path in ((place / RECORD), (place / EVALUATION)):
        path.unlink()
        os.mkfifo(path) if text == "pipe" else path.write_text(text)
    assert figures(place).keys() == {"steps", "tokens", "seconds", "tokens_per_second"}
    failed, _, did = run(study)
    assert (failed, did) == ([], ["evaluate strategy=token/seed-1"])
    assert "held_out" in figures(place)


@pytest.mark.parametrize("models", [[], "x", 7, None, {"m": 3}, {"m": {"held_out": [1], "pairs": "x"}}])
def test_figures_of_wrong_types_are_left_out(tmp_path: Path, models: Any) -> None:
    (tmp_path / "journal.jsonl").touch()
    evaluated = tmp_path / EVALUATION
    evaluated.write_text(json.dumps({"models": models}))
    assert "held_out" not in figures(tmp_path)
    numbers = {"loss": True, "masked_accuracy": "0.3"}
    evaluated.write_text(json.dumps({"models": {"m": {"held_out": numbers, "pairs": {"accuracy": 10**39}}}}))
    (tmp_path / FINETUNING).write_text('{"mean": NaN}')
    assert figures(tmp_path).keys() == {"steps", "tokens", "seconds", "pairs"}
    evaluated.write_text(json.dumps({"models": {"m": {"held_out": {"loss": int("9" * 400)}}}}))
    assert "held_out" not in figures(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": 10**12},
        {"seeds": 0},
        {"seeds": "2"},
        {"processes": True},
        {"processes": 0},
        {"pairs": "a\0b"},
        {"finetune": ["--train", "a\0b"]},
        {"baseline": "none of the arms"},
        {"contents": []},
        {"arms": [ARM | {"config": {}}]},
        {"arms": [ARM | {"config": {"train": {"steps": "many"}}}]},
        {"arms": [ARM, ARM | {"name": "b", "overrides": {"optim.lr": 1}}]},
        *({"arms": [ARM | {"name": name}], "baseline": name} for name in ("../../home", "/etc", "..", "a/b", "a\n")),
        NESTED,
        DIGITS,
        "pipe",
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_damaged_study_is_refused_in_one_line(config, change: dict[str, Any] | str) -> None:
    folder = kept(config).folder
    path = folder / "study.json"
    values = json.loads(path.read_text())
    if change == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_text(change if isinstance(change, str) else json.dumps(values | change))
    with pytest.raises(UserError) as refused:
        Study.open(folder)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) <= 300
    assert "\n" not in str(refused.value)


def test_a_log_that_is_a_pipe_is_not_opened(config) -> None:
    study = kept(config, seeds=1)
    log = study.runs[0].folder / "study.log"

    class Failing(Pretended):
        def __call__(self, words, log, poll=lambda: None):
            log.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(log)
            return 1

    assert run(study, Failing(), only=[1])[0][0].endswith(f"exit code 1:  (log: {log})")
