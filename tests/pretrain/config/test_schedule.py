"""Schedules of learning rates against their closed forms."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config import ScheduleConfig
from pretrain.optim import lr_factor


def factors(total: int, **settings) -> list[float]:
    schedule = ScheduleConfig(**settings)
    return [lr_factor(schedule, step, total) for step in range(total)]


def test_wsd_closed_form():
    found = factors(100, kind="wsd", warmup_steps=9, decay_fraction=0.2)
    wanted = [k / 10 for k in range(1, 10)] + [1.0] * 72 + [k / 20 for k in range(19, 0, -1)]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_linear_closed_form():
    found = factors(50, kind="linear", warmup_steps=10)
    wanted = [k / 11 for k in range(1, 11)] + [k / 40 for k in range(40, 0, -1)]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_without_warmup_the_first_step_has_the_peak_rate():
    assert factors(10, kind="linear")[0] == 1.0
    assert factors(10, kind="wsd")[0] == 1.0


def test_wsd_without_decay_stays_at_the_peak():
    assert factors(10, kind="wsd", decay_fraction=0) == [1.0] * 10


def test_wsd_that_decays_throughout_is_linear():
    assert factors(30, kind="wsd", warmup_steps=6, decay_fraction=1) == factors(30, kind="linear", warmup_steps=6)


def test_constant_warms_up_and_stays():
    assert factors(8, kind="constant", warmup_steps=3) == [0.25, 0.5, 0.75] + [1.0] * 5


def test_cosine_closed_form():
    found = factors(44, kind="cosine", warmup_steps=4, min_ratio=0.1)
    wanted = [k / 5 for k in range(1, 5)] + [0.1 + 0.45 * (1 + math.cos(math.pi * k / 40)) for k in range(40)]
    assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("decay", "falling"),
    [
        ("linear", lambda done: 1 - done),
        ("1-sqrt", lambda done: 1 - math.sqrt(done)),
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
    ],
)
@pytest.mark.parametrize("min_ratio", [0.0, 0.25])
def test_shapes_of_the_decay(decay, falling, min_ratio):
    found = factors(100, kind="wsd", warmup_steps=10, decay=decay, decay_steps=30, min_ratio=min_ratio)
    assert found[10:71] == [1.0] * 61
    wanted = [min_ratio + (1 - min_ratio) * falling(k / 30) for k in range(30)]
    assert found[70:] == pytest.approx(wanted, abs=1e-12)


def test_a_run_that_is_extended_goes_on_at_the_peak_and_decays_later():
    schedule = ScheduleConfig(kind="wsd", warmup_steps=5, decay_steps=20)
    before, after = ([lr_factor(schedule, step, total) for step in range(total)] for total in (100, 150))
    assert before[:81] == after[:81]
    assert after[80:131] == [1.0] * 51
    assert before[80:] == after[130:]


KINDS = st.sampled_from(["wsd", "cosine", "linear", "constant"])
SHAPES = st.sampled_from(["linear", "cosine", "1-sqrt"])


@settings(max_examples=300, deadline=None)
@given(
    KINDS, SHAPES, st.integers(0, 50), st.none() | st.integers(0, 300), st.floats(0, 1), st.floats(0, 0.9), st.data()
)
def test_bounds_and_continuity(kind, shape, warmup, decay_steps, fraction, min_ratio, data):
    total = data.draw(st.integers(1, 200))
    wsd = {"decay": shape, "decay_steps": decay_steps, "decay_fraction": fraction} if kind == "wsd" else {}
    ratio = {} if kind == "constant" else {"min_ratio": min_ratio}
    schedule = ScheduleConfig(kind=kind, warmup_steps=warmup, **wsd, **ratio)
    found = [lr_factor(schedule, step, total) for step in range(total + 1)]
    assert all(0 < factor <= 1 for factor in found[:-1])
    assert all(factor >= schedule.min_ratio for factor in found[warmup:])
    # No jump is larger than the schedule's steepest slope: the warm-up's, or the shape's over one step of the decay.
    length = total if kind == "constant" else total - warmup
    if kind == "wsd":
        length = min(length, round(fraction * total) if decay_steps is None else decay_steps)
    if length > 0:
        steepest = {"1-sqrt": math.sqrt(1 / length), "cosine": math.pi / 2 / length}.get(
            shape if kind == "wsd" else kind, 1 / length
        )
        jumps = [abs(a - b) for a, b in itertools.pairwise(found)]
        assert max(jumps) <= max(steepest, 1 / (warmup + 1)) + 1e-12


CASES = itertools.product(["wsd", "linear", "cosine"], [0, 1, 7, 99, 100, 101, 500], [0.0, 0.2, 1.0], [1, 2, 100])


@pytest.mark.parametrize(("kind", "warmup", "decay", "total"), CASES)
def test_every_step_is_in_the_open_closed_unit_interval_and_there_is_one_peak(kind, warmup, decay, total):
    found = factors(total, kind=kind, warmup_steps=warmup, **({"decay_fraction": decay} if kind == "wsd" else {}))
    assert all(0 < factor <= 1 for factor in found)
    peak = found.index(max(found))
    assert found[:peak] == sorted(found[:peak])
    assert found[peak:] == sorted(found[peak:], reverse=True)


def test_warmup_longer_than_the_run_only_rises():
    assert factors(5, kind="linear", warmup_steps=9) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert factors(5, kind="wsd", warmup_steps=9) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_beyond_the_end_the_rate_is_zero():
    assert lr_factor(ScheduleConfig(kind="linear"), 20, 10) == 0.0
