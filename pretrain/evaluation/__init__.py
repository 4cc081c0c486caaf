"""What a finished model knows: held-out loss, likelihoods of sentences, minimal pairs (docs/evaluation.md)."""
