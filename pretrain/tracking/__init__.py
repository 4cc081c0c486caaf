"""Send runs and results to MLflow: the only client of MLflow.

`Tracker` forwards the journal from a background thread, and training never waits for it. The journal on disk is the
queue. RUN/mlflow_run.json records how far it was sent, so nothing is lost when the server is down or the process is
killed: the thread, the next start of the run or `sync` continues there. `send_results` sends finished figures.

Only the journal decides which points are sent: for each metric and step the first line that has it, with that line's
time. MLflow's stores keep one row for equal run, metric, step, time and value, so sending a line twice adds nothing. A
step that a resumed run repeats is not sent again: MLflow keeps the first attempt's numbers, the journal has both.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
