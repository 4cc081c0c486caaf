from .check_list import examine_machine as examine_machine
from .network_test import examine_cluster as examine_cluster
