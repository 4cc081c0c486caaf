from .check_list import all_checks as all_checks
from .check_runner import run_checks as run_checks
from .finding import Finding as Finding
from .finding import worst as worst
from .findings_table import as_json as as_json
from .findings_table import print_finding as print_finding
from .findings_table import summary as summary
from .network_test import examine_cluster as examine_cluster
