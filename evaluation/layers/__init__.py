"""Analyze layers: mutual information, similarity, and their changes over training.

`measure` gives the `ModelMeasures` of models on a sample of positions (`SampleSettings`), and `draw_charts` draws them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
