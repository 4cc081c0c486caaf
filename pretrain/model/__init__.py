"""The encoder: attention, layers, prediction head, initial weights.

`families` maps weights to transformers' models and back. The room also has formulas for FLOPs and activation memory.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
