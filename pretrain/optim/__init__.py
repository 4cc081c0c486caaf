"""Optimizers for parameters that ZeRO cuts into pieces, parameter groups, and the schedule of the learning rate.

`build_optimizer` creates the optimizer of a run. `described` gives the kind of each parameter. `lr_factor` computes the
schedule: the share of the peak learning rate at a step.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
