"""The encoder: attention, layers, prediction head, initial weights.

`families` maps weights to transformers' models and back. It also has formulas for the model's FLOPs and the
memory of its activations.
"""
