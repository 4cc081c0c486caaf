"""The step loop: load a batch, step, report, evaluate, save, until the run is over.

`Loop` runs it on one rank. `held_out.py` evaluates the model on held-out data during training. `step_metrics.py`
computes the metrics of a step for the journal.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
