"""Documents from files, folders and URLs, read in ranges with bounded memory.

`find_inputs` turns `--input` values into inputs, `examine` returns the size, identity and units of an input, and
`RowReader` streams the documents of a range of units. An unreadable document becomes a row with a reason.
The room imports pyarrow and fsspec only when an input needs them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
