"""Held-out loss, pseudo-log-likelihoods of sentences, and minimal pairs such as BLiMP's.

`evaluate_models` is the entry; `minimal_pairs` scores BLiMP.
"""
