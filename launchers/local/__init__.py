"""This machine: start the training processes and wait for them, count GPUs, and check the machine before a start.

`train_locally` is `maskwright train`. The module `start_ranks` starts the processes. Ctrl-C and SIGTERM become a file
STOP in the run folder (`StopSignals`); the step loop then saves a checkpoint. `gpu_count` counts GPUs without torch.
`run_command` and `child_commands` run other commands of `maskwright`.
A check of the machine returns a `Finding`: name, status, measured value and advice; `judge` makes one from rules.
`check_node` makes all checks before a run starts on a node of Slurm. The doctor makes more.
"""

from launchers.local.gpus import gpu_count
from launchers.local.local_launch import train_locally
from launchers.local.node_checks import GIB, Finding, Status, check_memory, check_node, check_room, check_writes, judge
from launchers.local.run_commands import child_commands, run_command
from launchers.local.start_ranks import rank_variables
from launchers.local.stop_signals import StopSignals, end_on_stop_signals, on_stop_signals
