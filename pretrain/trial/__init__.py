"""The trial before the first step: the choice of kernels and micro-batch, and a step that changes nothing.

`choose_kernels` compares faster kernels with the plain step. `choose_micro_batch` takes the largest micro-batch that
fits by its plan, and `fit_micro_batch` one that fits into memory. `Trial.run_step` makes the trial step.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
