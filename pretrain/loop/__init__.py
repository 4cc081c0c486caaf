"""The step loop: load a batch, step, report, evaluate, save, until the run is over.

`Loop` runs it on one rank. `held_out.py` evaluates the model on held-out data during training. `step_metrics.py`
computes the metrics of a step for the journal.
"""

from pretrain.loop.step_loop import Loop
