"""Watch a run: loss spikes, slow ranks, hangs, ranks whose weights differ.

`Watchdog` notices a hang. `StepGuard` decides on each step; its `GuardHistory` is stored in checkpoints.
`check_replicas` compares the weights of the ranks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
