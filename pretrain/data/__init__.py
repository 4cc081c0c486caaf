"""Batches of training rows, from a position in the training order to tensors on the device.

`open_sources` opens the data sets of a run. `training_loader` and `held_out_loader` create a `Loader`, which builds the
micro-batches of a step. `Prefetcher` runs it ahead in a thread, and `DeviceFeed` copies batches to the device.
`BatchRows` shows batches as documents. `row_stream` and `first_rows` read rows without masks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
