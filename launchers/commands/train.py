"""`maskwright train`: train on this machine."""

import sys

from launchers.arguments import ConfigArgument, Overrides, ProcessCount


def train(
    config: ConfigArgument,
    overrides: Overrides = None,
    procs: ProcessCount = None,
) -> None:
    """Train on this machine. After a stop or a crash, run the same command to resume.

    Exit code: 0 completed, 75 stopped on request (Ctrl-C, SIGTERM, `maskwright stop`), 130 ended immediately by a
    second Ctrl-C, 1 failed.

    Examples:

        maskwright train configs/demo.yaml
        maskwright train configs/bert-mini.yaml train.steps=200 schedule.warmup_steps=20 --procs 2
    """
    from launchers.local import end_on_stop_signals

    end_on_stop_signals()
    from launchers.local import train_locally

    sys.exit(train_locally(config, overrides or [], procs))
