"""A checkpoint as a Hugging Face folder with model card; and model names that users type, as folders."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
