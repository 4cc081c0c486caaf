"""A trained model to figures: likelihoods, fine-tuning, layers, generated text, and studies that compare them."""
