"""`maskwright doctor`: find problems of a machine, a run or a cluster before a run starts.

`check_list` lists the checks, `check_runner` runs them, `report` prints their findings. Each `*_checks` file has the
checks of one subject; its `judge_*` functions turn measured values into findings. `network_test` compares the nodes of
a Slurm allocation. Each node makes a `node_report`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
