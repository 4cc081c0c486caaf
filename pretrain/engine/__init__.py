"""Training engine on DeepSpeed; the only room that imports it.

`Engine` does forward, backward, the sum of gradients over ranks, clipping and the optimizer step. `StepOutput` is the
result of a step. `load_weights` and the module `resharding` load a checkpoint into another number of ranks or another
ZeRO stage. `init_distributed` joins the process group. `Instant` and `StepClock` measure time on the device.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
