"""`maskwright prep run`: tokenize text into a data set."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from data_prep.jobs import Workers
from launchers.commands.arguments import WorkerCount
from launchers.commands.prep_options import with_request
from launchers.commands.prep_output import print_prepared, show_totals
from launchers.display import CommandProgress
from pretrain.distributed import Cores

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest


@with_request
def prep_run(ask: "Callable[[], PrepareRequest]", *, workers: WorkerCount = None) -> None:
    """Tokenize text into a data set. After an interruption, run the same command to resume.

    If you add inputs later, only those are processed. Unreadable rows are counted and listed in DIR/quarantine.jsonl.

    Example:

        maskwright prep run --input configs/demo/books.jsonl.zst --tokenizer data/demo-tokenizer --out data/books
    """
    with Workers(workers or Cores.usable().number) as processes, CommandProgress() as line:
        from data_prep.jobs import prepare  # slow import; the worker processes start in the meantime

        asked = ask()
        prepared = prepare(asked, processes, show_totals(line))
    print_prepared(prepared, asked.out, already_finished=not prepared.new_tasks)
