"""Studies: train the arms of a sweep with several seeds, evaluate, and compare with confidence intervals.

`open_sweep` loads the config of each arm. `define` makes a `Study` from them and options, and `open_unchanged` opens
one to resume it. `check_inputs` reads what the models are evaluated on. `run_study` does the work; a stop request
raises `Stopped`. `write_study_report` compares the arms. The caller passes the function that runs commands.
"""

from evaluation.study.comparison_report import write_study_report
from evaluation.study.define_study import check_inputs, define, open_unchanged
from evaluation.study.study_arms import Sweep, open_sweep
from evaluation.study.study_file import Study
from evaluation.study.study_runner import Stopped, run_study
