"""Analyze layers: mutual information, similarity, and their changes over training."""
