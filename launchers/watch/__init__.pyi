from .run_logs import find_log as find_log
from .run_logs import log_lines as log_lines
from .run_table import follow_runs as follow_runs
from .run_table import look_at_all as look_at_all
from .run_table import print_run as print_run
from .run_table import print_runs as print_runs
from .stop_run import stop_run as stop_run
