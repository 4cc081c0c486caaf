"""Watch a run: loss spikes, slow ranks, hangs, ranks whose weights differ.

`step_guard` decides on each step, `rollback` goes back to an earlier checkpoint, `watchdog` notices a hang.
`fault_injection` makes such faults for tests.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
