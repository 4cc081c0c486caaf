"""Masking: select the tokens to predict, replace them, and schedule the mask rate.

`MaskedTokens` masks rows in units of a strategy: tokens, words, n-grams, spans or collocations. Each mask is keyed by
seed and position (Philox), so every step draws new masks and any step can be repeated. `gpu_masking` is the Triton
kernel that draws the same masks on a GPU.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
