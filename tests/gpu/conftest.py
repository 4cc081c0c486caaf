"""Fixtures of the GPU tests. Without a GPU they are skipped."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that compile a model: a process needs minutes and much memory for them."""
    for item in items:
        if "compiled" in item.name and "tests/gpu" in item.nodeid:
            item.add_marker("compile")


def pytest_runtest_setup() -> None:
    """Of the tests of this folder: skipped here, all of them are one line of pytest's summary."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
