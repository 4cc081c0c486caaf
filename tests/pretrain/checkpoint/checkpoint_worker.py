"""One rank of test_checkpoint: saves during steps, lost ranks, full disks."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import torch.distributed as dist

from data_prep.common.errors import UserError
from data_prep.common.processes import leave
from pretrain.checkpoint import Parts, Saver, first_intact, newest_verified
from pretrain.checkpoint.saver import Snapshot
from tests.support import checkpoints
from tests.support.disks import fill


def _file_of(rank: int) -> str:
    return f"deepspeed/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def _snapshot(folder: Path, copy: bool, size: int = 500) -> Parts:
    rank = dist.get_rank()
    parts: Parts = {_file_of(rank): lambda sink: sink.write(bytes([rank]) * size) and None}
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


def full_disk(folder: Path, small: Path) -> None:
    """`small` has room for what rank 0 writes, not for what rank 1 does; then for neither; then for both."""
    told: list[Any] = []
    sizes = [500, 1 << 20]
    used = checkpoints.saver(small, lambda path, copy: _snapshot(path, copy, sizes[dist.get_rank()]), told)
    used.begin(1, {})
    _train(used)
    _no_commit(used, small, 1)
    assert used.problem is not None
    # They share what room there is, so that either may be the first to find none.
    assert re.match(r"the checkpoint of step 1 was not saved \(rank [01]: .*: No space left on device", used.problem)
    if dist.get_rank() == 0:
        filler = fill(small)
    dist.barrier()
    used.begin(2, {})
    _train(used)
    _no_commit(used, small, 2)
    assert "rank 0" in str(used.problem)
    dist.barrier()
    if dist.get_rank() == 0:
        filler.unlink()
    dist.barrier()
    sizes[1] = 500
    used.begin(3, {})
    _train(used)
    assert (used.failures, used.problem, used.saved_step) == (0, None, 3)
    assert first_intact(small, ["step-00000003"], lambda found: None)
    if dist.get_rank() == 0:
        assert [metrics.get("checkpoint/failed") for _, metrics in told] == [1, 2, None]
    sizes[:] = [500, 1 << 20]
    for step in (4, 5):
        used.begin(step, {})
    _train(used)
    used.begin(6, {})
    with pytest.raises(UserError, match=r"that is failure 3 in a row, and checkpoint\.max_failures is 3"):
        used.finish()
    used.close()


def _no_commit(used: Saver, folder: Path, failures: int) -> None:
    assert used.failures == failures
    assert used.saved_step == 0
    dist.barrier()
    assert not any(folder.glob("step-*")), "what was written is removed"
    dist.barrier()


def agree(folder: Path) -> None:
    """Rank 1's file of the newest checkpoint has a flipped byte: both ranks take the older one."""
    told: list[str] = []
    found = newest_verified(folder, told.append)
    assert found is not None
    assert found.step == 1
    assert len(told) == (dist.get_rank() == 0)
    assert all("zero_pp_rank_1" in line and "step-00000002" in line for line in told)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    if what == "commit":
        for step in (1, 2):
            _save(folder, step)
            assert first_intact(folder, [f"step-{step:08d}"], lambda found: None)
    elif what == "agree":
        agree(folder)
    elif what == "die":
        _save(folder, 3, _snapshot_and_die)
    elif what == "full_disk":
        full_disk(folder, Path(sys.argv[3]))
    dist.barrier()
    leave(0)


if __name__ == "__main__":
    main()
