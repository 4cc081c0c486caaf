"""Shards to a trained masked-language-model encoder."""
