"""The journal in columns: valid values and torn lines."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrain.run import Entry, JournalReader, JournalTable
from pretrain.run.journal_table import last_of_each


def entry(step, **metrics):
    batch = {"rows": 4, "seq_len": 8} if "loss" in metrics else None
    named = {("eval/loss" if name == "held" else f"train/{name}"): value for name, value in metrics.items()}
    return Entry(step, 100.0 + step, named, batch)


def test_the_later_line_of_a_step_counts_metric_by_metric():
    measured = JournalTable.of(
        [entry(1, loss=5.0), entry(2, loss=4.0), entry(2, held=3.0), entry(2, loss=4.5), entry(3, loss=1.0)]
    )
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


def test_not_a_number_comes_through(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text(json.dumps({"step": 1, "time": 0, "metrics": {"train/loss": "NaN"}}) + "\n")
    assert math.isnan(JournalTable.read(path).series("train/loss").values[0])


@given(st.lists(st.integers(0, 5)))
def test_last_of_each(steps):
    places = last_of_each(np.array(steps, np.int64)).tolist()
    assert places == [max(i for i, s in enumerate(steps) if s == step) for step in sorted(set(steps))]
