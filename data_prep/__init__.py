"""Raw text to verified, pre-tokenized shards.

A document passes the rooms `sources`, `cleaning`, `tokenizer`, `jobs` and `format`. `inspection` reads finished data
sets. The package imports no other package of Maskwright.
"""
