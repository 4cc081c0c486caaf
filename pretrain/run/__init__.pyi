from .environment_file import read_environment as read_environment
from .folder import EXIT_CODES as EXIT_CODES
from .folder import LOCK_VARIABLE as LOCK_VARIABLE
from .folder import RunFolder as RunFolder
from .folder import State as State
from .journal_table import JournalTable as JournalTable
from .journal_table import read_measured as read_measured
from .phase_marker import Pulse as Pulse
