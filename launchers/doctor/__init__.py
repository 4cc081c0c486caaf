"""`maskwright doctor`: find problems of a machine, a run or a cluster before a run starts.

`examine_machine` runs the checks that `check_list` lists. Each `*_checks` file has the checks of one subject; its
`judge_*` functions turn measured values into findings. `examine_cluster` compares the nodes of a Slurm allocation. Each
node makes a `node_report`.
"""

import lazy_loader

# nodes run `python -m launchers.doctor.node_report`, so that names are imported only when they are used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
