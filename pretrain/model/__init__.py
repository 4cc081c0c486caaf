"""The encoder: attention, layers, prediction head, initial weights, and formulas for FLOPs and memory.

`describe` makes the description of a model from a configuration, and `build` makes the model: an `Encoder`, or any
masked language model of transformers. `exported` and `from_hugging_face` convert weights to transformers' models and
back. `EncoderShape`, `describe` and `digest_of` load without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
