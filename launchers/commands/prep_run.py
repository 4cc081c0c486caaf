"""`maskwright prep run`: turn text into a data set."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from data_prep.jobs import Workers
from launchers.commands.arguments import WorkerCount
from launchers.commands.prep_options import with_request
from launchers.commands.prep_output import print_prepared, show_totals
from launchers.display import CommandProgress
from pretrain.distributed import usable_cores

if TYPE_CHECKING:
    from data_prep.jobs import PrepareRequest


@with_request
def prep_run(ask: "Callable[[], PrepareRequest]", *, workers: WorkerCount = None) -> None:
    """Tokenize text into a data set; interrupted, the same command goes on.

    Inputs that are added later are prepared alone. Rows that cannot be read are counted and listed in
    DIR/quarantine.jsonl.

    Example: `maskwright prep run --input 'text/*.jsonl.zst' --tokenizer tok --out data/books --valid-fraction 0.01`
    """
    with Workers(workers or usable_cores().number) as processes, CommandProgress() as line:
        from data_prep.jobs.prepare import prepare  # takes time, in which the processes start

        asked = ask()
        prepared = prepare(asked, processes, show_totals(line))
    print_prepared(prepared, asked.out, already_finished=not prepared.new_tasks)
