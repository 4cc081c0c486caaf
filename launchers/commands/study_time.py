"""`maskwright study time`: measure how long a step of each arm takes."""

from launchers.commands.arguments import StudyArgument
from launchers.commands.study_run import say, study_commands


def study_time(study: StudyArgument) -> None:
    """Measure how long a step of each arm takes, for runs of equal time; nothing if that is known.

    Examples:

        maskwright study time runs/study
    """
    from evaluation.study import needs_timing, open_unchanged
    from evaluation.study.step_timing import measure

    found = open_unchanged(study)
    if not needs_timing(study, found):
        print("nothing to measure")
        return
    with study_commands(study) as maskwright:
        measure(study, found, maskwright, say)
