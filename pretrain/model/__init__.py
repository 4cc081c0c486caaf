"""The encoder: attention, layers, prediction head, initial weights.

`families` maps weights to transformers' models and back. It also has formulas for the model's FLOPs and the
memory of its activations.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
