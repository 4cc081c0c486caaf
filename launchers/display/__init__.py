"""Output of commands: tables, progress, JSON files, and messages for command lines that cannot be parsed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
