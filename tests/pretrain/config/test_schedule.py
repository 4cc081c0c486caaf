"""Schedules of learning rates against their closed forms."""

import math

import pytest

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


def test_beyond_the_end_the_rate_is_zero():
    assert lr_factor(ScheduleConfig(kind="linear"), 20, 10) == 0.0
