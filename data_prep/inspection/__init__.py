"""Inspect finished data sets: verify all checksums, summarize, show a document, find collocations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
