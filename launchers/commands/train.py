"""`maskwright train`: train on this machine."""

import sys

from data_prep.common.errors import UserError
from launchers.arguments import ConfigArgument, Overrides, ProcessCount


def train(config: ConfigArgument, overrides: Overrides = None, procs: ProcessCount = None) -> None:
    """Train on this machine. After a stop or a crash, run the same command to resume.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 130 ended immediately by a
    second Ctrl-C, 1 failed.

    Examples:

        maskwright train configs/demo.yaml
        maskwright train configs/bert-mini.yaml train.steps=200 schedule.warmup_steps=20 --procs 2
    """
    from launchers.local import end_on_stop_signals

    end_on_stop_signals()
    from launchers.local import gpu_count, train_locally
    from pretrain.planning import check_start, print_warnings
    from pretrain.resuming import load_to_start

    parsed, overrides = load_to_start(config, overrides or [])
    processes = procs or max(1, gpu_count())
    if 0 < gpu_count() < processes:
        raise UserError(f"--procs {processes} needs {processes} GPUs, but {gpu_count()} are visible. Lower --procs.")
    print_warnings(check_start(parsed, processes))  # report errors before any process starts
    sys.exit(train_locally(config, parsed, overrides, processes))
