"""Raw text to verified, pre-tokenized WebDataset shards."""
