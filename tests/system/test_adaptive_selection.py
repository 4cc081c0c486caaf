"""Runs whose selection adapts to what the model predicts badly: the factors, resume, replay."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import UserError
from pretrain.loop.adaptive_selection import adapted
from pretrain.reporting import replay
from pretrain.run import JournalReader, RunFolder
from tests.support import runs
from tests.system.soak.soak import assert_same_checkpoint

STEPS, WINDOW = 34, 10
MASKED = {"masking": {"selection": {"adapt_steps": WINDOW}}, "optim__lr": 1e-2, "schedule__kind": "constant"}
MIXED = MASKED | {"objective": [{"kind": "clm", "share": 0.5}, {"kind": "mlm", "share": 0.5}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("adaptive")


@pytest.fixture(scope="module")
def data(folder) -> Path:
    return runs.tiny_data(folder / "data")


def train(folder: Path, data: Path, name: str, *overrides: str, processes: int = 2, **settings) -> Path:
    settings |= {"train__steps": STEPS, "checkpoint__every_steps": 17, "eval__every_steps": 17}
    config = runs.write_config(folder / f"{name}.yaml", runs.tiny_config(data, folder / name, **settings))
    done = runs.maskwright("train", config, *overrides, "--procs", str(processes))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / name


def factors(run: Path, step: int) -> np.ndarray:
    return np.load(RunFolder(run).mask_factors_from(step)).astype(np.float64)


def entries(run: Path):
    return JournalReader(run / "journal.jsonl").entries(batches=True)


def predicted(run: Path, steps: range) -> Counter:
    """How often each id was masked and predicted."""
    found: Counter = Counter()
    for step in steps:
        rows = replay(run, step).rows
        row, number = np.nonzero(rows.columns >= 0)
        masked = np.array([kind.name == "mlm" for kind in rows.kinds])[row]
        found.update(rows.original[row, rows.columns[row, number]][masked].tolist())
    return found


def test_factors_follow_from_the_predictions_of_a_window(folder, data):
    for name, settings in (("masked", MASKED), ("mixed", MIXED)):
        run = train(folder, data, name, **settings)
        assert np.all(factors(run, 0) == 1)
        assert np.all(factors(run, WINDOW) == 1)
        last = factors(run, WINDOW)
        for first in (0, WINDOW):
            times, found = predicted(run, range(first + 1, first + WINDOW + 1)), factors(run, first + 2 * WINDOW)
            n = np.array([times[id] for id in range(len(found))])
            # The share that is right of each id, from the factors: 0.5 for ids that were not predicted.
            unseen = np.flatnonzero(n == 0)[0]
            scale = found[unseen] / (0.2 * last[unseen] + 0.8 * 0.5)
            share = 1 - (found / scale - 0.2 * last) / 0.8
            right = share * (n + 1) - 0.5
            np.testing.assert_allclose(right, right.round(), atol=1e-3)
            assert np.all((right.round() >= 0) & (right.round() <= n))
            of_window = [entry.metrics for entry in entries(run) if first < entry.step <= first + WINDOW]
            metric = "train/masked_accuracy" + ("/mlm" if name == "mixed" else "")
            wanted = sum(metrics[metric] for metrics in of_window) / WINDOW * n.sum()
            assert right.sum() == pytest.approx(wanted, abs=0.02 * n.sum())
            np.testing.assert_allclose(adapted(last, right.round(), n), found, rtol=1e-5)
            last = found


def test_a_stop_changes_no_bit(folder, data):
    whole = train(folder, data, "whole", **MASKED)
    for stop in (25, 30):  # within a window, and between two
        parts = train(folder, data, f"stop-{stop}", f"train.steps={stop}", **MASKED)
        train(folder, data, f"stop-{stop}", **MASKED)
        for one, two in zip(entries(whole), entries(parts), strict=True):
            assert one.batch == two.batch
            assert one.metrics["train/masked_accuracy"] == two.metrics["train/masked_accuracy"]
        assert_same_checkpoint(RunFolder(whole), RunFolder(parts), STEPS)
        for first in (30, 40):  # the second from counts that the stop divided
            assert np.array_equal(factors(whole, first), factors(parts, first))


def test_masks_are_those_of_the_recorded_factors(folder, data):
    run = train(folder, data, "recorded", **MASKED, processes=1)
    for step in (1, 20, 21, STEPS):
        replay(run, step)  # raises unless the batch has the checksum in the journal
    file = RunFolder(run).mask_factors_from(20)
    np.save(file, factors(run, 20)[::-1].astype(np.float32))
    with pytest.raises(UserError, match=r"step-00000020\.npy.*is not what step 21 was trained with"):
        replay(run, 21)
    file.write_bytes(b"no array")
    with pytest.raises(UserError, match=r"step-00000020\.npy.*is not an array"):
        replay(run, 21)
    file.unlink()
    with pytest.raises(UserError, match=r"step-00000020\.npy"):
        replay(run, 21)
    replay(run, 20)


def test_settings_that_do_not_go_together_are_refused(folder, data):
    for name, masking, said in (
        ("few", {"selection": {"adapt_steps": 9}}, "adapt_steps must be 10 or more"),
        ("static", {"selection": {"adapt_steps": 10}, "static_epochs": 2}, "which static_epochs repeats"),
        ("gpu", {"selection": {"adapt_steps": 10}, "device": "gpu"}, "is for masking.device cpu"),
    ):
        values = runs.tiny_config(data, folder / name, masking=masking)
        config = runs.write_config(folder / f"{name}.yaml", values)
        done = runs.maskwright("train", config, "--procs", "1")
        assert done.returncode == 1
        assert said in done.stderr
