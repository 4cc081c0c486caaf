"""Masking: which tokens of a row are predicted, and what the model sees instead.

`MaskedTokens` draws the masks of rows in units of a strategy: tokens, words, n-grams, spans or collocations, with equal
chances or by weight. Each mask is keyed by seed and position (Philox), so every epoch draws new masks and any step can
be repeated. `mask_rate` is the schedule of the mask rate.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
