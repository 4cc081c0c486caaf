"""Entry point of a rank: `deepspeed --module pretrain.train --config CONFIG [section.key=value ...]`.

What takes seconds to import is imported when this process already says what it does and ends with its parent.
"""

import argparse
import os
from pathlib import Path

from data_prep.processes import die_with_parent, leave
from pretrain.distributed import rendezvous, threads_of
from pretrain.distributed.threads import settings
from pretrain.run import LOCK_VARIABLE
from pretrain.run.start_phases import LIBRARIES, begin, say_phase


def main() -> int:
    """Train as one rank; the exit code is 0 completed, 75 stopped on request, 1 failed."""
    parser = argparse.ArgumentParser(prog="pretrain.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # set by deepspeed
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    die_with_parent()
    is_main = os.environ.get("RANK", "0") == "0"
    processes = rendezvous.local_processes(os.environ)
    if is_main and LOCK_VARIABLE not in os.environ:  # `maskwright train` has said it
        begin(f"Starting a run with {os.environ.get('WORLD_SIZE', 1)} processes, {threads_of(processes)}.")
        say_phase(LIBRARIES)
    os.environ.update(settings(processes))  # before PyTorch is imported, which reads them
    from pretrain.engine import import_deepspeed

    import_deepspeed()
    from pretrain.session import run_rank

    return run_rank(arguments.config, arguments.overrides)


if __name__ == "__main__":
    leave(main())
