"""DeepSpeed's compiled extensions: built where they can be, and by one process at a time."""

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.builder import OpBuilder
from torch.utils.cpp_extension import _get_build_directory

from pretrain import nvme
from pretrain.config import Config


def build_extensions() -> None:
    """Build and load what DeepSpeed uses on a CPU, where it can be built; nothing on a GPU."""
    # DeepSpeed builds with ninja: always that of this environment, or it builds anew.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        build_extension(accelerator.create_op_builder("ShareMemCommBuilder"))


def prepare_swapping(config: Config) -> None:
    """Build and load what offloading to NVMe needs, and make its folder; raises UserError where it cannot be."""
    builder = get_accelerator().create_op_builder("AsyncIOBuilder")
    nvme.check_compatible(builder)
    build_extension(get_accelerator().create_op_builder("PinMemoryBuilder"))  # which it needs
    build_extension(builder)
    nvme.make_folder(config, dist.get_rank())


def extensions() -> list[str]:
    """DeepSpeed's compiled extensions that this process has loaded."""
    return list(OpBuilder._loaded_ops)


def build_extension(builder: Any) -> None:
    """Build and load an extension of DeepSpeed, one process after the other.

    PyTorch marks a build by a file `lock`, which stays if the builder is killed, and for which all later starts would
    wait for ever. The lock taken here goes with its process, so whoever holds it knows such a file to be left over.
    """
    if builder is None or not builder.is_compatible(verbose=False):
        return  # DeepSpeed does without
    folder = Path(_get_build_directory(builder.name, False))
    with open(folder / ".maskwright", "a") as file:
        with contextlib.suppress(OSError):  # a network file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
            (folder / "lock").unlink(missing_ok=True)
        builder.load()
