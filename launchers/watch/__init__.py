"""Find runs, show their state, and stop them: `maskwright status` and `stop`.

`view_runs` finds runs and reads their state, `print_runs` prints a table of them, and `print_run` all about one.
`follow_runs` prints a line for each change, until the runs are over. `require_runs` refuses folders that are not runs.
`stop_run` asks a run to stop, or cancels its pending job.
"""

from launchers.watch.run_table import follow_runs, print_run, print_runs, require_runs, view_runs
from launchers.watch.stop_run import stop_run
