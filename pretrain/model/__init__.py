"""The native encoder and its mapping to Hugging Face models."""
