"""Watch a run: loss spikes, slow ranks, hangs, ranks whose weights differ.

`Watchdog` notices a hang. `StepGuard` decides on each step, `roll_back` goes back to an earlier checkpoint,
`check_replicas` compares the weights of the ranks, and `Trial` makes the trial step. `check_fits` compares a checkpoint
with the settings. `Faults` injects such faults for tests.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
