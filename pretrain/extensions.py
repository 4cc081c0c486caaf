"""DeepSpeed's compiled extensions: which of them a run uses, and which it has loaded."""

import deepspeed.ops
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.builder import OpBuilder

from pretrain import nvme
from pretrain.config import Config
from pretrain.extension_build import build_extension


def disable_cpu_extensions() -> None:
    """Keep DeepSpeed from compiling its shared-memory all-reduce on a CPU: gloo gives the same sums as fast."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


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
