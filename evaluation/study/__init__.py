"""Masking studies: train each arm with several seeds, evaluate, and compare with confidence intervals.

The caller passes the functions that start commands and submit jobs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
