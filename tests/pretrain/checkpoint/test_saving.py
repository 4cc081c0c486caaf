"""Asynchronous checkpoints equal synchronous ones byte for byte, regardless of later training steps."""

from pathlib import Path

import pytest
import torch

from pretrain import checkpoint
from tests.pretrain.engine.varying_worker import RUNS
from tests.support.ranks import run_ranks


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def saved(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run_ranks("tests.pretrain.checkpoint.async_worker", request.param, str(folder))
    return folder


@pytest.mark.parametrize("layout", [f"{precision}-{stage}" for precision, stage in RUNS])
def test_an_asynchronous_checkpoint_is_that_of_its_step(saved, layout):
    before, meanwhile, after = (
        checkpoint.read(saved / layout / name / "step-00000002") for name in ("before", "meanwhile", "after")
    )
    assert before.files
    assert meanwhile.files == before.files, "the same bytes"
    assert after.files != before.files, "the steps meanwhile changed the state"
    assert checkpoint.verify(meanwhile.path) is None


def test_every_file_is_one_that_the_restricted_unpickler_reads(saved):
    from pretrain.engine.resharding import load_file

    files = list(saved.rglob("meanwhile/**/*.pt"))
    assert len(files) >= 2 * len(RUNS)
    for path in files:
        assert any(torch.is_tensor(value) for value in _values(load_file(path))), path


def _values(value):
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return [found for inner in value for found in _values(inner)]
    return [value]
