"""Filters for text, as pure functions.

`clean_all` normalizes and filters by length and repetition, `contaminated` finds text of evaluation sets, and
`resolve_repeats` finds exact duplicates (`document_hashes`) and near duplicates (`signatures`, MinHash).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
