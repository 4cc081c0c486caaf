from .check_list import all_checks as all_checks
from .check_list import checks_of_run as checks_of_run
from .check_runner import Check as Check
from .check_runner import run_checks as run_checks
from .network_test import examine_cluster as examine_cluster
from .report import print_report as print_report
from .tracking_checks import checks_of_tracking as checks_of_tracking
