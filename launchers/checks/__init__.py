"""Checks of one node, and their findings. The doctor and the start of a Slurm job use them.

A check returns a `Finding`: name, status, measured value and advice; `judge` makes one from rules. `check_node` makes
all checks before a run starts on a node.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
