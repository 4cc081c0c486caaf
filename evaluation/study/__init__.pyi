from .comparison_report import write_study_report as write_study_report
from .define_study import check_inputs as check_inputs
from .define_study import define as define
from .define_study import open_unchanged as open_unchanged
from .study_file import Study as Study
from .study_runner import Stopped as Stopped
from .study_runner import run_study as run_study
