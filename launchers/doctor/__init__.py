"""`maskwright doctor`: find problems of a machine, a run or a cluster before a run starts.

`examine_machine` runs the checks that `check_list` lists. Each `*_checks` file has the checks of one subject; its
`judge_*` functions turn measured values into findings. `examine_cluster` compares the nodes of a Slurm allocation. Each
node makes a `node_report`.
"""

from launchers.doctor.check_list import examine_machine
from launchers.doctor.cluster_checks import examine_cluster
from launchers.doctor.gpu_checks import list_gpus
