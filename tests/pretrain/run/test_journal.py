"""The journal keeps every number exactly, and survives a kill in the middle of a line; its values in columns."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.run import Entry, Journal, JournalReader, JournalTable


def write(path: Path, *entries: tuple[int, dict[str, float]]) -> None:
    journal = Journal(path)
    for step, metrics in entries:
        journal.append(step, metrics)
    journal.close()


@given(st.dictionaries(st.text(min_size=1), st.floats(), max_size=4), st.integers(0, 2**53))
def test_a_line_is_standard_json_and_gives_back_every_float(metrics: dict[str, float], step: int) -> None:
    line = Entry(step, 1.5, metrics).to_line()
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert line.count(b"\n") == 1
    entry = Entry.from_line(line)
    assert (entry.step, entry.time, entry.metrics.keys()) == (step, 1.5, metrics.keys())
    for name, value in metrics.items():
        assert math.copysign(1, entry.metrics[name]) == math.copysign(1, value) or math.isnan(value)
        assert entry.metrics[name] == value or (math.isnan(value) and math.isnan(entry.metrics[name]))


def test_a_later_line_wins_metric_by_metric_and_unrepeated_steps_stay(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, (1, {"a": 1.0}), (2, {"a": 2.0, "b": 7.0}), (3, {"a": 3.0}))
    journal = Journal(path)
    journal.append(2, {"a": 20.0})
    entries = JournalReader(path).entries()  # before the journal is closed
    journal.close()
    wanted = [(1, {"a": 1.0}), (2, {"a": 20.0, "b": 7.0}), (3, {"a": 3.0})]
    assert [(entry.step, entry.metrics) for entry in entries] == wanted
    assert entries[1].time >= entries[2].time


@pytest.mark.parametrize("lost", range(1, 30))
def test_a_torn_last_line_is_ignored_then_repaired(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, (1, {"train/loss": 6.5}), (2, {"train/loss": 6.25}))
    path.write_bytes(path.read_bytes()[:-lost])
    assert [entry.step for entry in JournalReader(path).entries()] == [1]
    write(path, (2, {"train/loss": 6.0}), (3, {"train/loss": 5.0}))
    losses = [(entry.step, entry.metrics["train/loss"]) for entry in JournalReader(path).entries()]
    assert losses == [(1, 6.5), (2, 6.0), (3, 5.0)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_torn_line_longer_than_one_chunk_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, (1, {"a": 1.0}))
    with open(path, "ab") as file:
        file.write(b'{"step": 2, "metrics": {"' + b"x" * 200_000)
    write(path, (2, {"a": 2.0}))
    assert len(path.read_bytes().splitlines()) == 2
    assert [entry.step for entry in JournalReader(path).entries()] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [b"", b"\x00" * 40, b"[]", b"3", b'{"step": 1}', b'{"step": "1", "time": 1, "metrics": {}}', b"\xff\xfe{}",
     b'{"step": -1, "time": 1, "metrics": {}}', b'{"step": 1, "time": 1, "metrics": {"a": "high"}}',
     b'{"step": 1, "time": 1, "metrics": {"a": null}}', b'{"step": 1.5, "time": 1, "metrics": {}}'],
)  # fmt: skip
def test_what_is_not_an_entry_is_ignored(line: bytes) -> None:
    assert Entry.from_line(line) is None


def test_reading_stops_before_an_unfinished_line_and_tells_damaged_ones(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, (1, {"a": 1.0}))
    first = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"{}\n" + b'{"step": 2')
    lines = [(end, entry and entry.step) for end, entry in JournalReader(path).lines()]
    assert lines == [(first, 1), (first + 3, None)]
    assert [end for end, _ in JournalReader(path).lines(stop=first)] == [first]
    assert list(JournalReader(path).lines(first + 3)) == []


def entry(step, **metrics):
    batch = {"rows": 4, "seq_len": 8} if "loss" in metrics else None
    named = {("eval/loss" if name == "held" else f"train/{name}"): value for name, value in metrics.items()}
    return Entry(step, 100.0 + step, named, batch)


def test_the_later_line_of_a_step_counts_metric_by_metric():
    later = entry(2, loss=4.5)
    measured = JournalTable.of([entry(1, loss=5.0), entry(2, loss=4.0), entry(2, held=3.0), later, entry(3, loss=1.0)])
    assert [part.tolist() for part in measured.series("train/loss")] == [[1, 2, 3], [5.0, 4.5, 1.0]]
    assert [part.tolist() for part in measured.series("eval/loss")] == [[2], [3.0]]
    assert measured.series("train/grad_norm").steps.tolist() == []
    assert measured.trained.tolist() == [0, 1, 3, 4]
    assert measured.slots.tolist() == [32, 32, 0, 32, 32]


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["loss", "held", "grad_norm"]), st.floats(-9, 9))))
def test_it_agrees_with_the_journal(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    path.write_bytes(b"".join(entry(step, **{name: value}).to_line() for step, name, value in lines))
    measured, journal = JournalTable.read(path), JournalReader(path).entries()
    for name in ("train/loss", "eval/loss", "train/grad_norm"):
        expected = [(e.step, e.metrics[name]) for e in journal if name in e.metrics]
        assert list(zip(*(part.tolist() for part in measured.series(name)), strict=True)) == expected


def test_torn_lines_are_counted_but_for_one_that_is_being_written(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole = entry(1, loss=2.0).to_line()
    path.write_bytes(whole + b'{"step": 2, "ti\n' + b"\xff\x00\n" + whole[:20])
    measured = JournalTable.read(path)
    assert (measured.torn, measured.steps.tolist()) == (2, [1])
