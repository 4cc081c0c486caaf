"""Configuration of a run: one YAML file and `section.key=value` overrides. Every key is checked.

No module here imports torch, so the command line and the launchers check a config quickly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
