"""Watch a run: loss spikes, slow ranks, hangs, ranks whose weights differ.

`StepGuard` decides on each step, `roll_back` goes back to an earlier checkpoint, `Watchdog` notices a hang.
`check_fits` compares a checkpoint with the settings. `Faults` makes such faults for tests.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
