"""The format of a data set: what preparation writes and training reads.

`shard_writer` writes WebDataset tars with their indexes, `reader` turns bytes of a shard into documents, and
`integrity_checks` compares them with checksums. Storage is local or behind a URL. docs/data-format.md is the
specification.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
