"""Communication between the processes of a run.

`prepare_rendezvous` completes the environment of a rank, and `interface_to` finds its network interface. Ranks agree on
failures with `run_on_all_ranks`, and exchange values with `all_gather_json`. `Threads` and `Cores` say how many threads
a process gets. `DeferredReader` reads device values without a wait.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
