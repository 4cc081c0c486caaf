"""Filters for text, and the search for documents that repeat earlier ones.

`Cleaning` normalizes text and applies filters; each `TextFilter` is a file in `filters/`, or a class by import path.
`Grams` finds text of evaluation sets. For exact and near duplicates, `key_writer` writes keys of documents,
`find_repeats` compares the keys of a `KeyRange`, and `join_drops` joins the results.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
