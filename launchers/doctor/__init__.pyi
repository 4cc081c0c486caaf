from .check_list import examine_machine as examine_machine
from .gpu_checks import list_gpus as list_gpus
from .network_test import examine_cluster as examine_cluster
