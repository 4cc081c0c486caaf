"""Raw text to verified, pre-tokenized shards.

A document passes the rooms `sources`, `cleaning`, `tokenizer`, `jobs` and `format`. `inspection` reads finished data
sets. `storage` has files and caches that these rooms share. The package imports no other package of Maskwright.
"""
