"""The run folder: its file names, and the code that writes them.

Status, lock, journal and stop request. `folder` names all files. `stop_request` turns SIGTERM into a request to the
step loop, which then saves a checkpoint and stops.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
