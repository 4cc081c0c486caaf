"""The trial step: advice after a failure, and memory that suffices on some ranks only."""

import torch

from pretrain.trial.trial_step import explain
from tests.support.ranks import run_ranks


def test_a_trial_step_that_fails_says_what_to_change():
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
        MemoryError(),
    ):
        said = explain(error, 64, 512)
        assert said
        assert "with 64 rows of 512 slots in a micro-batch does not fit into memory; lower train.micro_batch" in said
    assert "could not be compiled; set train.compile=false" in str(
        explain(torch._dynamo.exc.Unsupported("no such thing"), 64, 512)
    )
    assert explain(ValueError("something else"), 64, 512) is None


def test_a_pass_that_does_not_fit_into_memory_on_one_rank_fits_on_none():
    run_ranks("tests.pretrain.trial.memory_worker", 2)
