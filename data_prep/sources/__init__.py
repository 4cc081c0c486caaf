"""Documents from files, folders, URLs and the Hub, read in ranges with bounded memory.

`find_inputs` turns `--input` values into inputs, `examine` returns the size, identity and units of an input, and
`RowReader` streams the documents of a range of units. An unreadable document becomes a row with a reason. `GroupReader`
reads many small files as one input.
`hub_records` reads whole rows of a data set of the Hub.
The room imports pyarrow, fsspec and datasets only when an input needs them.
"""

from data_prep.sources.file_group import GroupedFile, GroupReader, examine_group
from data_prep.sources.input_types import MAX_DOCUMENT_BYTES, Options, SourceInput, SourceRow
from data_prep.sources.open_rows import Examined, RowReader, examine, examine_unchanged, hub_records
from data_prep.sources.resolve_inputs import find_inputs, how_to_convert
