"""Train, load and apply tokenizers.

A faster tokenizer package is used only where it gives the same ids as Hugging Face's. `alignment` maps words of two
texts onto each other. `token_text` shows tokens as readable text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
