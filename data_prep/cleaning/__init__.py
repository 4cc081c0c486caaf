"""Filters for text, as pure functions.

Normalization, repetition, contamination with evaluation texts, exact duplicates and near duplicates (MinHash). `jobs`
calls them: a document is dropped as a duplicate in `exact_duplicates` or `near_duplicates`.
"""
