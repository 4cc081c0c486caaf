"""Raw text to verified, pre-tokenized shards.

Order of the rooms as a document passes them: `sources`, `cleaning`, `tokenizer`, `jobs`, `format`. `inspection` reads
finished data sets. The package imports nothing else of Maskwright.
"""
