"""Training objectives: predict masked tokens, the next token, or the repair of a wrong token."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
