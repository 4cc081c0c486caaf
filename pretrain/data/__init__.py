"""Batches of training rows, from a position in the training order to tensors on the device.

`order` and `mixture` choose documents. `row_filling` and `packing` put them into rows. `stream` and `loader` build the
batches of a step. `prefetch` and `feed` move them to the device. `phases` changes row length and batch size during a
run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
