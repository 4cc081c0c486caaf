"""`maskwright study time`: measure the step time of each arm."""

from launchers.commands.arguments import StudyArgument
from launchers.commands.study_run import say, study_commands


def study_time(study: StudyArgument) -> None:
    """Measure the step time of each arm, for runs of equal time. Known times are not measured again.

    Examples:

        maskwright study time runs/study
    """
    from evaluation.study import measure_times, needs_timing, open_unchanged

    found = open_unchanged(study)
    if not needs_timing(study, found):
        print("nothing to measure")
        return
    with study_commands(study) as maskwright:
        measure_times(study, found, maskwright, say)
