"""Compare ways of masking: train the arms of a study, evaluate them, and conclude with confidence intervals.

It starts commands and submits jobs only through functions that the caller hands in.
"""
