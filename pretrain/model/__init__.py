"""The encoder: attention, layers, prediction head, initial weights, and formulas for FLOPs and memory.

`describe_model` makes the description of a model from a configuration, and `build` makes the model: an `Encoder`, or
any masked language model of transformers; `build_for_training` adds first weights and ways to compute. `exported` maps
the weights to a model of transformers, and `native_encoder` back. `EncoderCosts` counts operations and memory.
`EncoderShape`, `describe_model` and `weights_digest` load without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
