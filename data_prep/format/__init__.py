"""The format of a data set: what preparation writes and training reads.

`ShardWriter` writes WebDataset tars with their indexes, `Manifest.write` makes a data set of them, and `Dataset` reads
its documents from a folder or a URL and checks every byte. docs/data-format.md is the specification.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
