"""Train, load and apply tokenizers.

A faster tokenizer package is used only where it gives the same ids as Hugging Face's. `alignment` maps words of two
texts onto each other. `token_text` shows tokens as readable text.
"""
