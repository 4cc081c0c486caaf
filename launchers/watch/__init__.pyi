from .run_table import PIPE_WIDTH as PIPE_WIDTH
from .run_table import Seen as Seen
from .run_table import age_cell as age_cell
from .run_table import ago as ago
from .run_table import as_json as as_json
from .run_table import look_at_all as look_at_all
from .run_table import number as number
from .run_table import place as place
