"""One rank: all ranks choose the same kernels, and a failure on one of them falls back on all.

`python -m tests.pretrain.trial.path_worker`; torch.compile captures graphs but generates no code, which takes minutes.
"""

import functools

import torch
import torch.distributed as dist

from data_prep.common.processes import leave
from pretrain.engine import init_distributed
from pretrain.kernels import Candidates, FastPath, KernelChoice
from pretrain.model import Encoder
from pretrain.trial.path_comparison import agreed_path
from tests.support import path_cases


def no_compiler(model: Encoder, shapes: int) -> None:
    raise RuntimeError("no compiler on this host")


def chosen(model: Encoder) -> KernelChoice:
    """The choice where a GPU would try compiled graphs."""
    settings = path_cases.config("fp32", fused_kernels=False)
    choice = agreed_path(model, settings, Candidates.of(settings, "cuda"), path_cases.inputs())
    assert model.is_compiled == choice.path.compiled
    return choice


if __name__ == "__main__":
    init_distributed()
    torch.compile = functools.partial(torch.compile, backend="eager")
    model = path_cases.encoder("bert", "fp32")
    assert chosen(model) == KernelChoice(FastPath(False, True), "agrees with the plain step on 4 rows")
    if dist.get_rank() == 1:
        Encoder.compile_graph = no_compiler  # type: ignore[method-assign]
    reason = "compiled: RuntimeError: no compiler on this host (rank 1)"
    assert chosen(model) == KernelChoice(FastPath(False, False), reason)
    dist.barrier()
    leave(0)
