"""Moving means of noisy metrics."""

import numpy as np
import pytest

from pretrain.run.journal_table import smooth


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("window", [0, 1, 2, 5, 50])
def test_smoothing_keeps_length_and_constants(n: int, window: int) -> None:
    assert smooth(np.full(n, 3.0), window) == pytest.approx(np.full(n, 3.0))


def test_smoothing_is_a_centred_mean_without_the_values_that_are_not_finite() -> None:
    assert smooth(np.array([0.0, 3.0, 6.0, 0.0, 0.0]), 3) == pytest.approx([1.5, 3.0, 3.0, 2.0, 0.0])
    assert smooth(np.array([1.0, np.nan, 3.0, np.inf]), 3) == pytest.approx([1.0, 2.0, 3.0, 3.0])
