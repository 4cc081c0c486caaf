"""DeepSpeed's compiled extensions: which of them a run uses, and which it has loaded."""

import os
import sys
from pathlib import Path

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.builder import OpBuilder

from pretrain import nvme
from pretrain.config import Config
from pretrain.extension_build import build_extension


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
