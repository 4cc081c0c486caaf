"""The trial step: advice after a failure, and memory that suffices on some ranks only."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import torch
import torch.distributed as dist

from pretrain.config import StageSettings
from pretrain.data import BatchStage
from pretrain.engine import Engine
from pretrain.objectives import objective_of
from pretrain.resuming import ResumeState
from pretrain.trial import Trial
from pretrain.trial.path_comparison import free_memory
from pretrain.trial.trial_step import explain
from tests.support.engine_steps import SEQ_LEN, SHAPE, VOCABULARY, config, model, run_as_rank
from tests.support.memory_blocks import MemoryBlocks, memory_loader
from tests.support.ranks import run_ranks

# An activation of the MLP has 8 MiB for each row, so that a pass over FEW rows needs less than SPARE, and MANY more.
WIDE = replace(SHAPE, intermediate=1 << 16)
FEW, MANY = 2, 32
SPARE = 256 << 20  # bytes
SETTINGS = config("fp32", "1", data={"train": "unused", "seq_len": SEQ_LEN})


@contextmanager
def limited_memory(device: torch.device) -> Iterator[None]:
    """Let this process allocate no more than SPARE bytes beside what it has now."""
    free_memory()
    if device.type == "cuda":
        most = torch.cuda.memory_reserved() + SPARE
        torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(device).total_memory)
        yield
        torch.cuda.set_per_process_memory_fraction(1.0)
    else:
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + SPARE, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_DATA, before)


def fits(engine: Engine, rows: int) -> bool:
    """Whether micro-batches of `rows` rows fit on all ranks."""
    stage = BatchStage.divided(dist.get_world_size(), StageSettings(0, SEQ_LEN, rows * dist.get_world_size(), rows, ""))
    objective = objective_of(SETTINGS, VOCABULARY, 3, "train")
    opened = memory_loader([MemoryBlocks([[30, 17, 25, 22, 16]])], VOCABULARY, objective, [stage], dist.get_rank())
    all_fit = Trial(SETTINGS, engine, opened, ResumeState(0, opened.mixture.start())).fits()
    opened.close()
    return all_fit


def check_memory() -> None:
    """A trial pass fits on no rank where the memory of the last rank is limited; on a CPU or a GPU."""
    engine = Engine(SETTINGS, model(shape=WIDE))
    assert fits(engine, MANY)
    if dist.get_rank() == dist.get_world_size() - 1:
        with limited_memory(engine.device):
            assert not fits(engine, MANY)
            assert fits(engine, FEW), "memory of the failed pass is still held"
    else:
        assert not fits(engine, MANY), "the last rank has no memory"
        assert fits(engine, FEW)
    assert fits(engine, MANY)


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
    run_ranks(__name__, 2, "check_memory")


if __name__ == "__main__":
    run_as_rank(check_memory)
