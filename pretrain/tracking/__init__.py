"""Forwards a run's journal to MLflow from a background thread that training never waits for.

The journal on disk is the queue, and RUN/mlflow_run.json remembers how far it has been sent, so nothing is lost when
the server is away or the process is killed: the thread, the next run or `maskwright track sync` goes on from there.
The queue needs no bound of its own: the journal is written whether MLflow is there or not, and a run's is as long as
the run. In memory there are one request's metrics at most, and a bit for each step of each metric.

What is sent is a pure function of the journal: of each (metric, step) the first line that holds it, with that line's
time. MLflow's stores keep one row for one (run, metric, step, time, value), so sending a line twice adds nothing, and
a step that a resumed run repeats is not sent again: MLflow keeps the first attempt's numbers, the journal has both.
"""

from pretrain.config.mlflow_address import OFFLINE
from pretrain.tracking.points import Point
from pretrain.tracking.record import RECORD_NAME, RunRecord, load_record
from pretrain.tracking.results import Results, send_results
from pretrain.tracking.sender import sync
from pretrain.tracking.target import Target, command_target, resolve_target, run_page, run_target
from pretrain.tracking.thread import Tracker

__all__ = [
    "OFFLINE",
    "RECORD_NAME",
    "Point",
    "Results",
    "RunRecord",
    "Target",
    "Tracker",
    "command_target",
    "load_record",
    "resolve_target",
    "run_page",
    "run_target",
    "send_results",
    "sync",
]
