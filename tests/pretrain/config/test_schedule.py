"""Schedules of learning rates against their closed forms."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config import ScheduleConfig
from pretrain.optim import lr_factor


def factors(total: int, **settings) -> list[float]:
    schedule = ScheduleConfig(**settings)
    return [lr_factor(schedule, step, total) for step in range(total)]


@pytest.mark.parametrize(
    ("total", "schedule", "wanted"),
    [
        (
            100,
            {"kind": "wsd", "warmup_steps": 9, "decay_fraction": 0.2},
            [*(k / 10 for k in range(1, 10)), *[1.0] * 72, *(k / 20 for k in range(19, 0, -1))],
        ),
        (10, {"kind": "wsd", "decay_fraction": 0}, [1.0] * 10),
        (5, {"kind": "wsd", "warmup_steps": 9}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        (6, {"kind": "wsd", "warmup_steps": 2, "decay_fraction": 1}, [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4]),
        (6, {"kind": "linear", "warmup_steps": 2}, [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4]),
        (4, {"kind": "linear"}, [1, 3 / 4, 2 / 4, 1 / 4]),
        (8, {"kind": "constant", "warmup_steps": 3}, [0.25, 0.5, 0.75, *[1.0] * 5]),
        (
            44,
            {"kind": "cosine", "warmup_steps": 4, "min_ratio": 0.1},
            [*(k / 5 for k in range(1, 5)), *(0.1 + 0.45 * (1 + math.cos(math.pi * k / 40)) for k in range(40))],
        ),
    ],
)
def test_closed_forms(total, schedule, wanted):
    assert factors(total, **schedule) == pytest.approx(wanted, abs=1e-12)


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
    found = factors(100, kind="wsd", warmup_steps=10, decay=decay, decay_fraction=0.3, min_ratio=min_ratio)
    assert found[10:71] == [1.0] * 61
    wanted = [min_ratio + (1 - min_ratio) * falling(k / 30) for k in range(30)]
    assert found[70:] == pytest.approx(wanted, abs=1e-12)


def test_a_run_that_is_extended_goes_on_at_the_peak_and_decays_later():
    before, after = (factors(total, kind="wsd", warmup_steps=5, decay_fraction=0.2) for total in (100, 150))
    assert before[:81] == after[:81]
    assert after[80:121] == [1.0] * 41
    assert after[121] < 1


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["wsd", "cosine", "linear", "constant"]),
    st.sampled_from(["linear", "cosine", "1-sqrt"]),
    st.integers(0, 50),
    st.floats(0, 1),
    st.integers(1, 200),
    st.floats(0, 0.9),
)
def test_rates_are_between_the_last_one_and_the_peak(kind, shape, warmup, fraction, total, min_ratio):
    wsd = {"decay": shape, "decay_fraction": fraction} if kind == "wsd" else {}
    ratio = {} if kind == "constant" else {"min_ratio": min_ratio}
    found = factors(total, kind=kind, warmup_steps=warmup, **wsd, **ratio)
    assert all(0 < factor <= 1 for factor in found)
    assert all(factor >= ratio.get("min_ratio", 1) for factor in found[warmup:])


def test_beyond_the_end_the_rate_is_zero():
    assert lr_factor(ScheduleConfig(kind="linear"), 20, 10) == 0.0
