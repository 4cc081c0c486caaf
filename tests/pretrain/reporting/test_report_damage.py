"""The report page of a run folder with damaged files: damaged values are left out."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pretrain.reporting import collect, write_page
from pretrain.reporting.page_data import read_config
from pretrain.reporting.prediction_table import predictions_of
from tests.support.report_runs import eventful, prediction_lines, write_run

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        "pipe",
        DEEP,
        LONG,
        BOMB,
        "a: 2020-01-01",
        "[1]: x",
        f"a: 0x{LONG}",
        "a: !!binary aGk=",
        "a: .nan",
        "[1]",
        "a: {b: &x [*x]}",
    ],
    ids=lambda text: text[:15],
)
def test_a_damaged_config_is_left_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    os.mkfifo(path) if text == "pipe" else path.write_text(text)
    assert read_config(path) == {}


@pytest.mark.parametrize("phases", ["5", "[5]", "[{}]", "[{steps: x}]"])
def test_damaged_phases_are_left_out(tmp_path: Path, phases: str) -> None:
    run = write_run(tmp_path / "run", eventful())
    with (run / "config.yaml").open("a") as file:
        file.write(f"\nphases: {phases}\n")
    assert collect(run, tmp_path / "page.html")["marks"]["phase"] == []


WRONG: list[Any] = [None, 7, -1, "x", True, [1], ["x"], {"x": 1}, [{"host": 5, "gpus": [7], "ranks": 3}], 1e308]
KEYS = ["packages", "hosts", "slurm", "data", "git_commit", "parameters", "earlier_starts", "after_step", "time"]


@pytest.mark.parametrize("key", KEYS)
def test_an_environment_of_wrong_types_is_left_out(tmp_path: Path, key: str) -> None:
    run = write_run(tmp_path / "run", eventful())
    for value in WRONG:
        (run / "environment.json").write_text(json.dumps({key: value}))
        json.dumps(collect(run, tmp_path / "page.html"))


@pytest.mark.parametrize("text", ["pipe", DEEP, LONG, f'{{"parameters": {LONG}}}'], ids=lambda text: text[:15])
@pytest.mark.parametrize("name", ["environment.json", "predictions.jsonl"])
def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path, name: str, text: str) -> None:
    run = write_run(tmp_path / "run", eventful())
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name) if text == "pipe" else (run / name).write_text(text)
    json.dumps(collect(run, tmp_path / "page.html"))


@pytest.mark.parametrize(
    "change",
    [
        {"step": "3"},
        {"step": True},
        {"ids": 7},
        {"ids": [["x", 9], [9, 8]]},
        {"ids": [[1], [9, 8]]},
        {"probabilities": [["x", 0.1], [0.6, 0.2]]},
        {"right": "x"},
        {"right": [0.5]},
        {"key": ["k"]},
        {"original": [2]},
        {"seen": "x"},
        {"predictions": [{"place": 99}]},
        {"slot": None},
    ],
    ids=str,
)
def test_passages_and_answers_of_wrong_types_are_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    asked, first, second = map(json.loads, prediction_lines("k", [2, 3]))
    of_answers = change.keys() <= second.keys()
    (second if of_answers else asked["passages"][0][0]).update(change)
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (asked, first, second)))
    found = predictions_of(path, tmp_path)
    assert (found and found["steps"]) == ([2] if of_answers else None)


def test_whole_numbers_above_64_bits_are_shown_as_floats(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", eventful())
    asked, first = prediction_lines("k", [2])
    large = json.loads(first) | {"probabilities": [[1 << 64, 0.1], [0.6, 0.2]], "right": [10**39, 0.5]}
    (run / "predictions.jsonl").write_bytes(asked + json.dumps(large).encode() + b"\n")
    content = collect(run, run / "report.html")
    write_page(content, run / "report.html")
    assert content["predictions"]["answers"][0][0][1:] == [[2.0**64, 0.1], 1e39]
