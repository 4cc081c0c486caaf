"""Training on this machine: start the processes and wait for them.

`train_locally` is `maskwright train`. The module `start_ranks` starts the processes.
Ctrl-C and SIGTERM become a file STOP in the run folder (`StopSignals`); the step loop then saves a checkpoint.
`gpu_count` counts GPUs without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
