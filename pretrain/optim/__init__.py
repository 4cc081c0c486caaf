"""Optimizers for parameters that ZeRO cuts into pieces, parameter groups, and the schedule of the learning rate.

`sharded_optimizer` is the base of all optimizers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
