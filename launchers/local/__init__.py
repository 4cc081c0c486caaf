"""Start the training processes of this machine and wait for their end; the demo."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
