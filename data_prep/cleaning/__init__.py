"""Filters for text, as pure functions.

Normalization, repetition, contamination with evaluation texts, exact duplicates and near duplicates (MinHash). `jobs`
calls them: a document is dropped as a duplicate in `exact_duplicates` or `near_duplicates`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
