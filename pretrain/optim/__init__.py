"""Optimizers for parameters that ZeRO cuts into pieces, parameter groups, and the schedule of the learning rate.

`build_optimizer` creates the optimizer of a run. `described` gives the kind of each parameter, and `lr_factor` the
learning rate of a step.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
