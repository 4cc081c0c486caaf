"""Plan a run: memory and speed estimates, and the preflight checks that refuse a bad start.

`Planner` plans a config, and `check_start` makes all checks before a run starts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
