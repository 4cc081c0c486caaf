"""Compare ways of masking: train the arms of a study, evaluate them, and conclude with confidence intervals.

It starts commands and submits jobs only through functions that the caller hands in.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
