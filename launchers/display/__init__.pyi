from .json_output import check_json_output as check_json_output
from .json_output import write_json_output as write_json_output
from .progress import CommandProgress as CommandProgress
from .tables import facts_table as facts_table
from .tables import text_console as text_console
from .tables import text_table as text_table
