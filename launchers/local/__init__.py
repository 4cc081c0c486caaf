"""Training on this machine: start the processes and wait for them.

`train_locally` is `maskwright train`. The module `start_ranks` starts the processes of one machine, here or on a host.
`supervise` waits for processes on other machines. Both turn Ctrl-C and Slurm's signals into a file STOP in the run
folder, with `StopSignals`; the step loop then saves a checkpoint. `gpu_count` counts GPUs without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
