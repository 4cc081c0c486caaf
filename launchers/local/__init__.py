"""Training on this machine: start the processes and wait for them.

`train_locally` is `maskwright train`. `start_ranks` starts the processes of one machine, here or on a host. `supervise`
waits for processes on other machines. Both handle Ctrl-C and Slurm's signals with `StopSignals`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
