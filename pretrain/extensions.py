"""DeepSpeed's compiled extensions. Only zero.offload nvme uses any."""

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed.ops
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.builder import OpBuilder
from torch.utils.cpp_extension import _get_build_directory

from pretrain import nvme
from pretrain.config import Config


def disable_cpu_extensions() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce on a CPU: gloo gives the same sums as fast.

    DeepSpeed reads this dictionary for that extension alone, and would run gcc to fill it.
    """
    deepspeed.ops.__compatible_ops__ = {}


def prepare_swapping(config: Config) -> None:
    """Build and load the extensions of zero.offload nvme, and make its folder.

    Raises:
        UserError: if they cannot be built here, or the folder cannot be made.
    """
    # The ninja of this environment, which comes with DeepSpeed: a build by another ninja starts from scratch.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    builder = get_accelerator().create_op_builder("AsyncIOBuilder")
    nvme.check_compatible(builder)
    pinned = get_accelerator().create_op_builder("PinMemoryBuilder")  # which the first one needs
    for one in filter(None, (pinned, builder)):
        build_extension(one)
    nvme.make_folder(config, dist.get_rank())


def build_extension(builder: Any) -> None:
    """Build and load an extension (`builder`: DeepSpeed's OpBuilder), one process of a host at a time.

    PyTorch marks a build by a file `lock`. It stays if the builder is killed, and all later starts would wait for ever.
    The system drops the lock taken here when its process ends, so whoever holds it may remove that file.
    """
    folder = Path(_get_build_directory(builder.name, False))
    with open(folder / ".maskwright", "a") as file:
        with contextlib.suppress(OSError):  # a network file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
            (folder / "lock").unlink(missing_ok=True)
        builder.load()


def extensions() -> list[str]:
    """DeepSpeed's compiled extensions that this process has loaded."""
    return list(OpBuilder._loaded_ops)
