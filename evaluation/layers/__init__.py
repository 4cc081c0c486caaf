"""Analyze layers: mutual information, similarity, and their changes over training."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
