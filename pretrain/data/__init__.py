"""Batches of training rows, from a position in the training order to tensors on the device.

`mixture` chooses the data set of each row. `packing` puts documents into rows. `stream` and `loader` build the
batches of a step. `feed` builds them ahead and moves them to the
device.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
