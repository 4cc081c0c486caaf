from .input_types import Options as Options
from .input_types import SourceInput as SourceInput
from .input_types import SourceRow as SourceRow
from .open_rows import Examined as Examined
from .open_rows import RowReader as RowReader
from .open_rows import examine as examine
from .resolve_inputs import find_inputs as find_inputs
from .resolve_inputs import how_to_convert as how_to_convert
