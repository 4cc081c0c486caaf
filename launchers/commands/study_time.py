"""`maskwright study time`: measure the step time of each arm."""

from launchers.commands.arguments import StudyArgument
from launchers.commands.study_run import say, study_commands


def study_time(study: StudyArgument) -> None:
    """Measure the step time of each arm, for runs of equal time. Known times are not measured again.

    Examples:

        maskwright study time runs/study
    """
    from evaluation.study import measure_times, open_unchanged

    found = open_unchanged(study)
    if not found.needs_timing:
        print("nothing to measure")
        return
    with study_commands(study) as maskwright:
        measure_times(found, maskwright, say)
