"""The curve shows what was measured, whatever is missing."""

import math
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from pretrain.reporting.png_charts import draw_run
from pretrain.run.journal import Entry
from pretrain.run.journal_table import journal_table_of, smooth


def entries(n: int) -> list[Entry]:
    made = []
    for step in range(1, n + 1):
        metrics = {"train/loss": 10 / step**0.1, "train/learning_rate": 1e-4, "speed/tokens_per_second": 9000.0 + step}
        made.append(Entry(step, 0.0, metrics | ({"eval/loss": 8.0} if step % 10 == 0 else {})))
    return made


def share(picture: np.ndarray, colour: str) -> float:
    """Share of pixels of about this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return float((np.abs(picture[..., :3] - wanted).max(axis=-1) < 0.08).mean())


def test_every_series_is_drawn(tmp_path: Path) -> None:
    draw_run(journal_table_of(entries(100)), tmp_path / "all.png", "a run")
    picture = matplotlib.image.imread(tmp_path / "all.png")
    for colour in ("#1f6fb4", "#d9660d", "#2a8a4a", "#777777"):
        assert share(picture, colour) > 2e-4, colour
    no_eval = [Entry(e.step, e.time, {k: v for k, v in e.metrics.items() if k != "eval/loss"}) for e in entries(100)]
    draw_run(journal_table_of(no_eval), tmp_path / "some.png", "a run")
    assert share(matplotlib.image.imread(tmp_path / "some.png"), "#d9660d") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.png", "some.png"]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_entries_are_no_trouble(tmp_path: Path, n: int) -> None:
    draw_run(journal_table_of(entries(n)), tmp_path / "curve.png", "short")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_values_that_are_not_finite_leave_a_gap(tmp_path: Path) -> None:
    made = entries(30)
    made[3].metrics["train/loss"] = math.nan
    made[4].metrics["train/loss"] = math.inf
    draw_run(journal_table_of(made), tmp_path / "curve.png", "with NaN")


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("window", [0, 1, 2, 5, 50])
def test_smoothing_keeps_length_and_constants(n: int, window: int) -> None:
    assert smooth(np.full(n, 3.0), window) == pytest.approx(np.full(n, 3.0))


def test_smoothing_is_a_centred_mean_without_the_values_that_are_not_finite() -> None:
    assert smooth(np.array([0.0, 3.0, 6.0, 0.0, 0.0]), 3) == pytest.approx([1.5, 3.0, 3.0, 2.0, 0.0])
    assert smooth(np.array([1.0, np.nan, 3.0, np.inf]), 3) == pytest.approx([1.0, 2.0, 3.0, 3.0])
