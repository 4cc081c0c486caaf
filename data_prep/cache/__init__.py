"""A cache on disk of bounded size for files, and parts of files, behind URLs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
