"""Shards to batches: from a position in the training order to tensors on the device.

`Sources` opens the data sets of a run. A `Loader` reads blocks of shards, packs documents into rows and builds the
micro-batches of a step. `BatchStage` says how a batch is split over processes. `Prefetcher` runs the loader ahead in a
thread, and `DeviceFeed` copies batches to the device. `BatchRows` shows batches as documents, `unmasked_rows` reads
rows without masks, `masked_visits` masks a text several times, and `Filling` says how full packed rows are.
`MaskedStream` gives the batches to other trainers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
