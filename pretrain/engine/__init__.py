"""Training engine on DeepSpeed; the only room that imports it.

`Engine` does forward, backward, the sum of gradients over ranks, clipping and the optimizer step. `resharding` loads a
checkpoint into another number of ranks or another ZeRO stage.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
