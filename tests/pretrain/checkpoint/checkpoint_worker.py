"""One rank of test_checkpoint: saves during steps, and a rank that is lost during one."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from data_prep.common.processes import leave
from pretrain.checkpoint import Parts, Saver, first_intact
from pretrain.checkpoint.saver import Snapshot
from tests.support import checkpoints


def _file_of(rank: int) -> str:
    return f"deepspeed/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def _snapshot(folder: Path, copy: bool) -> Parts:
    rank = dist.get_rank()
    parts: Parts = {_file_of(rank): lambda sink: sink.write(bytes([rank]) * 500) and None}
    return parts | ({checkpoints.MODEL: checkpoints.in_pieces} if rank == 0 else {})


def _snapshot_and_die(folder: Path, copy: bool) -> Parts:
    """Rank 1's thread kills its process when rank 0 has written everything."""

    def die(sink: IO[bytes]) -> None:
        sink.write(b"a part")
        sink.flush()
        while not (folder / checkpoints.MODEL).exists() or (folder / checkpoints.MODEL).stat().st_size < 3000:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    return {_file_of(1): die} if dist.get_rank() == 1 else _snapshot(folder, copy)


def _train(used: Saver, seconds: float = 30) -> int:
    """Steps as the loop makes them, until the save in flight is committed or has failed; how many."""
    steps, deadline = 0, time.monotonic() + seconds
    while used.busy:
        assert time.monotonic() < deadline
        flags = torch.tensor(used.poll())
        dist.all_reduce(flags)
        if flags[0] == dist.get_world_size():
            used.finish()
        time.sleep(0.001)
        steps += 1
    return steps


def _save(folder: Path, step: int, snapshot: Snapshot = _snapshot) -> None:
    used = checkpoints.saver(folder, snapshot)
    used.begin(step, {})
    _train(used)
    used.close()


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    if what == "commit":
        for step in (1, 2):
            _save(folder, step)
            assert first_intact(folder, [f"step-{step:08d}"], lambda found: None)
    elif what == "die":
        _save(folder, 3, _snapshot_and_die)
    dist.barrier()
    leave(0)


if __name__ == "__main__":
    main()
