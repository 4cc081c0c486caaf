from .check_list import examine_machine as examine_machine
from .cluster_checks import examine_cluster as examine_cluster
from .gpu_checks import list_gpus as list_gpus
