"""Communication between the processes of a run.

Rendezvous and network interfaces, agreement of all ranks, deferred device-to-host reads, memory shared by the ranks
of a host, and threads per process.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
