"""Training on several machines over ssh, without Slurm.

A `HostsJob` describes the run. `read_hostfile` reads the hosts, `check_hosts` compares them, and `train_on_hosts`
starts their processes. `host_probe` and `host_entry` run on the hosts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
