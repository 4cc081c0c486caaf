"""Turn text into a data set, with progress and totals."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.common.errors import UserError
from data_prep.jobs import Workers
from launchers.display import CommandProgress, print_prepared, show_totals
from pretrain.distributed import Cores

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest
    from data_prep.sources import SourceInput


def find_text(
    inputs: Sequence[str], evaluation: Iterable[Path], out: Path
) -> "tuple[list[SourceInput], dict[str, int]]":
    """The inputs of a preparation, and the files in their folders that are not read, with their bytes.

    Raises:
        UserError: there is no such input, it is also an `evaluation` file, or `out` cannot be written.
    """
    from data_prep.common.files import check_writable
    from data_prep.sources import find_inputs

    if not inputs:
        raise UserError("No input. Name a file of text, a folder or a URL.")
    check_writable(out, inside=True)
    unread_files: dict[str, int] = {}
    sources = find_inputs(list(inputs), unread_files)
    for file in evaluation:
        if str(file.resolve()) in {source.location for source in sources}:
            raise UserError(
                f"{file} is both an input and an evaluation file. Remove it from --input or --decontaminate."
            )
    return sources, unread_files


def run_preparation(request: "Callable[[], PrepareRequest]", out: Path, workers: int | None) -> None:
    """Prepare a data set in `workers` processes, one for each core by default, and print its totals.

    Args:
        request: makes the request for `out`; called when the processes have been started.

    Raises:
        UserError: for bad input, an OUT with other input, a killed worker, a full disk, or too much unreadable input.
    """
    with Workers(workers or Cores.usable().number) as processes, CommandProgress() as line:
        from data_prep.jobs import prepare  # slow import; the worker processes start in the meantime

        prepared = prepare(request(), processes, show_totals(line))
    print_prepared(prepared, out, already_finished=not prepared.new_tasks)
