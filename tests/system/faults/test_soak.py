"""A run interrupted at random times until it completes: it equals the uninterrupted run bit for bit."""

import pytest

from tests.system.soak.soak import soak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "seed", "settings"),
    [
        (10, 0, {}),
        (24, 1, {"zero__stage": 2, "train__precision": "bf16"}),
        (10, 3, {"zero__stage": 3, "checkpoint__asynchronous": False}),
    ],
)
def test_soak(faults, seed, settings, tmp_path):
    report = soak(tmp_path, faults, seed, **settings)
    assert report.faults.total() == faults
    assert len({moment for _, moment in report.faults}) == 4, "kills at every kind of moment"
    assert report.repeated > 0, "nothing was lost, so nothing was made good"
