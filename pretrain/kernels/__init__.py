"""How a run computes: layer operations in plain torch and in Triton, and the choice of kernels and attention.

The operations are between matrix products: norms, activations, rotary positions, embeddings and cross-entropy.
`operations` chooses their implementation once, when a model is built. PLAIN uses plain torch, runs anywhere and is the
reference of the kernels. The Triton kernels run on a GPU, or on a CPU under TRITON_INTERPRET=1. `Candidates` are the
kernels that a run may use, and `ComputeBackends` says what it uses, and why; they load without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
