"""The run folder: every file name, and how each file is written.

Status, lock, journal and stop request. `folder` names all files. `stop_request` turns SIGTERM into a request that the
step loop sees, so that it saves a checkpoint.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
