"""`maskwright study report`: write the report of a study."""

from typing import TYPE_CHECKING

from launchers.commands.arguments import StudyArgument

if TYPE_CHECKING:
    from evaluation.study import Study


def study_report(study: StudyArgument) -> None:
    """Write the report of the finished runs of a study.

    Examples:

        maskwright study report runs/study
    """
    from evaluation.study import Study

    print_report(Study.open(study))


def print_report(study: "Study") -> None:
    """Write the report of a study and print it."""
    from evaluation.study import write_study_report

    page = write_study_report(study)
    print(page.with_name("report.md").read_text(), end="\n\n")
    print(page)
