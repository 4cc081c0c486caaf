"""The trial step: advice after a failure, wrong gradients, and memory that suffices on some ranks only."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version

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
from pretrain.trial.trial_step import explain, wrong_gradients
from tests.support.configs import least_config
from tests.support.engine_steps import SEQ_LEN, SHAPE, VOCABULARY, config, model
from tests.support.memory_blocks import MemoryBlocks, memory_loader
from tests.support.ranks import check_on_ranks

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
        assert "with 64 rows of 512 slots in a micro-batch does not fit into memory; lower train.micro_batch" in said
    said = explain(torch._dynamo.exc.Unsupported("no such thing"), 64, 512)
    assert "could not be compiled; set train.compile=false" in str(said)
    assert explain(ValueError("something else"), 64, 512) is None


def test_wrong_gradients_are_told_with_the_worst_parameter_the_settings_and_the_version():
    def message(compiled: bool, precision: str, **zero: object) -> str:
        config = least_config(train={"precision": precision, "compile": compiled}, zero=zero)
        return wrong_gradients({"decoder_bias": 0.02, "layers.3.mlp_out.weight": 0.3141}, config)

    deepspeed = f"DeepSpeed {version('deepspeed')}"
    assert message(True, "bf16", stage=2) == (
        "Gradients of layers.3.mlp_out.weight (and 1 more) differ from a plain all-reduce by 31% of their norm with "
        f"ZeRO 2, bf16, torch.compile and {deepspeed}. Set zero.stage=1, or use another version of DeepSpeed."
    )
    said = message(False, "fp32", stage=3, offload="cpu")
    assert f"with ZeRO 3, offload to the CPU, fp32 and {deepspeed}. Set zero.stage=1 and zero.offload=none, or" in said


def test_a_pass_that_does_not_fit_into_memory_on_one_rank_fits_on_none():
    check_on_ranks(check_memory, 2)
