"""Processes that train together: meet, agree, and share.

Rendezvous and network interfaces, decisions that are alike on all ranks, device-to-host reads that no step waits for,
memory shared by the ranks of a host, and threads per process.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
