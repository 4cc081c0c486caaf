"""This machine: start the training processes and wait for them, count GPUs, and check the machine before a start.

`train_locally` is `maskwright train`. The module `start_ranks` starts the processes. Ctrl-C and SIGTERM become a file
STOP in the run folder (`StopSignals`); the step loop then saves a checkpoint. `gpu_count` counts GPUs without torch.
`run_command`, `start_command` and `child_commands` run other commands of `maskwright`.
A check of the machine returns a `Finding`: name, status, measured value and advice; `judge` makes one from rules.
`check_node` makes all checks before a run starts on a node of Slurm. The doctor makes more.
"""

import lazy_loader

# `python -m launchers.local.start_ranks` imports this room, so that names are imported only when they are used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
