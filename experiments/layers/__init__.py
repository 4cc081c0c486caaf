"""Layers of a model: their similarity, and their information on input and target. `python -m experiments.layers -h`."""
