"""Generate text: mask-predict, diffusion, left to right.

A `Writer` opens a model and writes the texts of a `GenerationRequest`. `require_mask` refuses a text without a mask.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
