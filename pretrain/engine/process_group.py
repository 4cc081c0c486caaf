"""Start of a rank: its process group, its GPU, deterministic operations, and a warning for a slow precision."""

import os
import socket

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from data_prep.common.errors import UserError
from pretrain.distributed import prepare_rendezvous


def init_distributed(deterministic: bool = False) -> None:
    """Join the process group that the launcher's environment describes (gloo on CPU, NCCL on GPU).

    Args:
        deterministic: see make_deterministic. NCCL reads its settings when the group is made.

    Raises UserError if it describes no group, or this host has no GPU for this process.
    """
    if deterministic:
        make_deterministic()
    init_method = prepare_rendezvous(os.environ)
    # Keep DeepSpeed from compiling its shared-memory all-reduce on a CPU: gloo gives the same sums as fast. DeepSpeed
    # reads this dictionary for that extension alone, and would run gcc to fill it.
    deepspeed.ops.__compatible_ops__ = {}
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":  # collectives before the engine exists need it
        accelerator.set_device(_own_gpu(accelerator.device_count()))
    backend = accelerator.communication_backend_name()
    deepspeed.init_distributed(dist_backend=backend, init_method=init_method, verbose=False)


def _own_gpu(visible: int) -> int:
    local_rank = int(os.environ["LOCAL_RANK"])
    if local_rank >= visible:
        raise UserError(
            f"{socket.gethostname()} has {visible} GPUs for process {local_rank + 1} of this host: "
            "start as many processes on each host as it has GPUs"
        )
    return local_rank


def make_deterministic() -> None:
    """Demand of PyTorch operations that give the same bits each time. On a CPU all do that are not compiled.

    Call it before the process group is made and before the first operation on a GPU. Variables that are set are kept.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS's own condition
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVSwitches add in an order that varies (NCCL's issue 1497)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def slow_precision(precision: str, device: str) -> str | None:
    """A warning where 16 bits are far slower than 32: a CPU without instructions for them multiplies one by one."""
    if device != "cpu" or precision == "fp32" or not torch.backends.mkldnn.is_available():
        return None
    if getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")():
        return None
    return (
        f"warning: this processor has no instructions for {precision} and will train many times slower than in fp32: "
        "set train.precision=fp32"
    )
