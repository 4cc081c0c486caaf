"""Documents from files, folders, URLs and the Hub: found, measured, and read in ranges with bounded memory.

`find_inputs` turns `--input` values into files, `examine` tells a file's size, identity and units of work, and
`Rows` streams the documents of a range of units. What cannot be read is reported as a row with a reason.
Nothing here imports pyarrow, fsspec or datasets until an input needs it.
"""

from data_prep.sources.examine_input import Examined, examine
from data_prep.sources.find_inputs import find_inputs
from data_prep.sources.input_types import Options, SourceInput, SourceRow
from data_prep.sources.open_rows import RowReader

__all__ = [
    "Examined",
    "Options",
    "RowReader",
    "SourceInput",
    "SourceRow",
    "examine",
    "find_inputs",
]
