"""One rank that calls a function of a module: `python -m tests.support.rank_process MODULE FUNCTION ARGUMENTS...`.

tests.support.ranks starts such ranks. A module with DETERMINISTIC = True has the sums of its group in a fixed order.
"""

import importlib
import sys

import torch
import torch.distributed as dist

from data_prep.common.processes import leave
from pretrain.engine import init_distributed

if __name__ == "__main__":
    module, check, *arguments = sys.argv[1:]
    checks = importlib.import_module(module)
    init_distributed(getattr(checks, "DETERMINISTIC", False))
    torch.set_num_threads(1)
    getattr(checks, check)(*arguments)
    dist.barrier()
    leave(0)
