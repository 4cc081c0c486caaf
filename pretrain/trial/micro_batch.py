"""The micro-batch of a run: the largest that fits by its plan, lowered until it fits into memory."""

from dataclasses import replace

import torch
import torch.distributed as dist

from pretrain.data import BatchStage, Loader
from pretrain.distributed import all_gather_json, print_on_rank_zero, run_on_all_ranks
from pretrain.engine import Engine
from pretrain.kernels import FastPath
from pretrain.model import use_path
from pretrain.planning import GpuMemory, Planner, micro_batch_sizes, with_micro_batch
from pretrain.resuming import ResumeState
from pretrain.setup import RunParts, open_loader
from pretrain.trial.trial_step import Trial


def smallest_gpu() -> int | None:
    """Bytes of the smallest GPU of all ranks; None on CPUs. A collective."""
    on_gpu = dist.get_backend() == "nccl"
    own = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory if on_gpu else None
    everyone = all_gather_json(own)
    return None if None in everyone else min(everyone)


def choose_micro_batch(run: RunParts, gpu_bytes: int | None) -> RunParts:
    """The run with the largest micro-batch that fits by its plan, unless the config sets one; a collective.

    Args:
        gpu_bytes: memory of the smallest GPU; None on CPUs, where a step has one micro-batch.
    """
    if gpu_bytes is None or run.given.train.micro_batch_size is not None:
        return run
    gpu = GpuMemory("the smallest GPU", gpu_bytes)
    rows = run_on_all_ranks(lambda: Planner(run.config, run.data).largest_micro_batch(len(run.hosts), gpu))
    print_on_rank_zero(f"Micro-batch: {rows} rows, the most that fit into {gpu_bytes / 1e9:.0f} GB by the plan")
    return _with_micro_batch(run, rows)


def _with_micro_batch(run: RunParts, rows: int) -> RunParts:
    config = with_micro_batch(run.config, rows)
    return replace(run, config=config, stages=BatchStage.of_run(config, len(run.hosts)))


def fit_micro_batch(run: RunParts, engine: Engine, loader: Loader, state: ResumeState) -> tuple[RunParts, Loader]:
    """The run and its loader with a micro-batch that fits into memory, if its size was chosen; a collective.

    Under ZeRO 3 a pass exchanges weights, so that a rank without memory would leave the others waiting: the trial step
    then ends the run.
    """
    given = run.given.train.micro_batch_size is not None or run.config.train.micro_batch_size is None
    if given or run.config.zero.stage == 3:
        return run, loader
    while not Trial(run.config, engine, loader, state).fits():
        rows = run.config.train.micro_batch_size or 0
        smaller = [size for size in micro_batch_sizes(run.given, len(run.hosts)) if size < rows]
        if not smaller:
            break  # the trial step says what to do
        print_on_rank_zero(f"Micro-batch: {rows} rows do not fit into memory, so {smaller[0]} are tried")
        run = _with_micro_batch(run, smaller[0])
        loader.close()
        loader = open_loader(run)
        use_path(engine.module, run.config, FastPath.of(run.config))
    return run, loader
