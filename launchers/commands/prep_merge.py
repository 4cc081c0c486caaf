"""`maskwright prep merge`: merge the results of all tasks into a data set."""

from data_prep.jobs import Workers
from launchers.arguments import PlanArgument, WorkerCount
from launchers.display import print_prepared
from pretrain.distributed import Cores


def prep_merge(out: PlanArgument, workers: WorkerCount = None) -> None:
    """Verify all tasks of a plan and write the manifest of the data set. If tasks are missing, list them and fail.

    Example:

        maskwright prep merge data/books
    """
    from data_prep.jobs import merge_tasks

    with Workers(workers or Cores.usable().number) as processes:
        print_prepared(merge_tasks(out, processes), out)
