"""Raw text to verified, pre-tokenized shards.

A document passes the rooms `sources`, `cleaning`, `tokenizer`, `jobs` and `format`. `inspection` reads finished data
sets. `storage` has the files that they share. The package imports no other package of Maskwright.
"""
