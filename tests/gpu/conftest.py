"""Fixtures of the GPU tests. Without a GPU they are skipped."""

import pytest
import torch


def pytest_runtest_setup() -> None:
    """Of the tests of this folder: skipped here, all of them are one line of pytest's summary."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
