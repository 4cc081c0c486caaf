"""Optimizer state and fp32 weights on NVMe disks: DeepSpeed's ZeRO-Infinity, for stage 3.

DeepSpeed (0.19) keeps each group of parameters' weights and state in files, reads them for the group's step and writes
them back. Whatever else looks at them, as checkpoints do, has to ask for them: `resident`. Groups of less than a
megabyte stay in memory.
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from data_prep.errors import UserError
from pretrain.config import Config


def swap_folder(config: Config) -> Path | None:
    """Where the processes of a run swap to, on each host; None if they do not."""
    if config.zero.nvme_path is None:
        return None
    return config.zero.nvme_path / f"maskwright-{xxhash.xxh3_64_hexdigest(str(config.run.dir.resolve()).encode())}"


def check_compatible(builder: Any) -> None:
    """Refuse a machine on which DeepSpeed's asynchronous reading and writing cannot be built.

    Raises:
        UserError: naming what to install.
    """
    if builder is None or not builder.is_compatible(verbose=False):
        raise UserError(
            "zero.offload nvme reads and writes by libaio, which is not here; install the package libaio-dev (Debian, "
            "Ubuntu) or libaio-devel (Fedora, RHEL) on every node, or write zero.offload cpu"
        )


def make_folder(config: Config, rank: int) -> None:
    """An empty folder for this rank: what a killed run has left there is of no use.

    Raises:
        UserError: if it cannot be made.
    """
    remove_folder(config, rank)
    if folder := swap_folder(config):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"zero.nvme_path: {error.filename or folder}: {error.strerror}") from None


def remove_folder(config: Config, rank: int) -> None:
    """Remove what this rank has swapped out, and the folders above, as far as they are the run's and empty."""
    if folder := swap_folder(config):
        ranks = folder / "zero_stage_3" / "optimizer"
        shutil.rmtree(ranks / f"rank{rank}", ignore_errors=True)
        with contextlib.suppress(OSError):  # another rank's are still there
            for empty in (ranks, ranks.parent, folder):
                empty.rmdir()


def is_swapped(engine: Any, number: int) -> bool:
    """Whether the weights and the state of a flat tensor, by its number, are on disk between steps."""
    return engine.zero_optimization_stage() == 3 and bool(engine.optimizer._swappable_optimizer_subgroup(number))


@contextlib.contextmanager
def resident(engine: Any, number: int) -> Iterator[None]:
    """Have a flat tensor's weights and state in memory, if they are not, and write them back afterwards."""
    swapped = is_swapped(engine, number)
    if swapped:
        engine.optimizer._optimizer_states_and_gradient_swap_in(number)
    yield
    if swapped:
        engine.optimizer._optimizer_states_and_gradient_swap_out(number)


def flat_numels(engine: Any, tensors: Iterable[Tensor]) -> list[int]:
    """Elements of the flat tensors, which have none in memory while they are on disk."""
    if engine.zero_optimization_stage() == 3:
        return [int(numel) for numel in engine.optimizer.fp16_partitioned_groups_flat_numel]
    return [tensor.numel() for tensor in tensors]


def read_back(engine: Any, states: Iterable[Any]) -> None:
    """Put copies of what is on disk into the states that DeepSpeed has gathered for a checkpoint, which has it empty.

    The checkpoint is then that of a run with the state in memory.
    """
    for state in states:
        saved = state.get("optimizer_state_dict")
        if not isinstance(saved, dict) or "fp32_flat_groups" not in saved:
            continue
        flats = list(saved["fp32_flat_groups"])
        for number, tensor in enumerate(engine.optimizer.fp32_partitioned_groups_flat):
            if is_swapped(engine, number):
                with resident(engine, number):
                    flats[number] = tensor.detach().clone()
                    found = engine.basic_optimizer.state[tensor]
                    own = {key: value.clone() if torch.is_tensor(value) else value for key, value in found.items()}
                saved["optimizer_state_dict"]["state"][number] = own
        saved["fp32_flat_groups"] = flats
