"""From a position in the training order to a batch.

`order` and `mixture` choose documents, `row_filling` and `packing` lay them into rows, `stream` and `loader` make the
batches of a step, `prefetch` and `feed` move them to the device. `phases` changes row length and batch size during a
run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
