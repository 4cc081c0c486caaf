"""Send runs and results to MLflow: the only client of MLflow.

`Tracker` forwards the journal from a background thread, and training never waits for it. RUN/mlflow_run.json records
how far it was sent. After an outage or a kill, the thread, the next start of the run or `sync` continues there.
`send_results` sends finished figures. `copy_journal`
copies the journal to TensorBoard or Weights & Biases. `log_models` and `register` make MLflow models of checkpoints.

For each metric and step, the first journal line that has it is sent, with its time. MLflow keeps one row for equal run,
metric, step, time and value, so sending a line twice adds nothing. If a resumed run repeats a step, MLflow keeps the
numbers of the first attempt; the journal has both.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
