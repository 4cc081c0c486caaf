from .arm_run import is_done as is_done
from .command_runner import Commands as Commands
from .command_runner import Maskwright as Maskwright
from .command_runner import Stopped as Stopped
from .comparison_report import write_study_report as write_study_report
from .define_study import open_unchanged as open_unchanged
from .study_file import Study as Study
from .study_runner import needs_timing as needs_timing
