"""Held-out loss, pseudo-log-likelihoods of sentences, and minimal pairs such as BLiMP's.

Start in `evaluate_models`; `minimal_pairs` scores BLiMP.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
