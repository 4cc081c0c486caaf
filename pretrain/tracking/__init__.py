"""Send runs and results to MLflow: the only client of MLflow.

`Tracker` forwards the journal from a background thread, and training never waits for it. The journal on disk is the
queue. RUN/mlflow_run.json records how far it was sent, so nothing is lost when the server is down or the process is
killed: the thread, the next start of the run or `sync` continues there. `send_results` sends finished figures, such as
those of an evaluation. `command_target` and `run_target` decide the address.

Only the journal decides which points are sent: for each metric and step the first line that has it, with that line's
time. MLflow's stores keep one row for equal run, metric, step, time and value, so sending a line twice adds nothing. A
step that a resumed run repeats is not sent again: MLflow keeps the first attempt's numbers, the journal has both.
"""

from pretrain.config.mlflow_address import OFFLINE
from pretrain.tracking.forwarder_thread import Tracker
from pretrain.tracking.journal_forwarder import sync
from pretrain.tracking.journal_points import Point
from pretrain.tracking.result_sender import TrackedResults, send_results
from pretrain.tracking.run_record import RECORD_NAME, RunRecord, load_record
from pretrain.tracking.tracking_target import Target, command_target, resolve_target, run_page, run_target

__all__ = [
    "OFFLINE",
    "RECORD_NAME",
    "Point",
    "RunRecord",
    "Target",
    "TrackedResults",
    "Tracker",
    "command_target",
    "load_record",
    "resolve_target",
    "run_page",
    "run_target",
    "send_results",
    "sync",
]
