"""Evaluate trained models: likelihoods, fine-tuning, layer analysis, generated text, and studies of masking."""
