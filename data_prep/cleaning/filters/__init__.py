"""Filters of text, one class in each file: see `TextFilter`. A file that is added here needs no other change."""
