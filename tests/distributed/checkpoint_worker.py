"""One rank of test_checkpoint: two commits, in the second of which rank 1 dies when rank 0 has written its part."""

import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from pretrain import checkpoint
from pretrain.signals import leave


def _save(folder: Path) -> None:
    rank = dist.get_rank()
    (folder / "deepspeed").mkdir(exist_ok=True)
    if rank == 0:
        (folder / "deepspeed" / "model.pt").write_bytes(b"weights" * 100)
    (folder / "deepspeed" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(bytes([rank]) * 500)


def _save_and_die(folder: Path) -> None:
    if dist.get_rank() == 1:
        own = folder / "deepspeed" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
        while not (own.exists() and own.stat().st_size == 500):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    _save(folder)


def agree(folder: Path) -> None:
    """Rank 1's file of the newest checkpoint has a flipped byte: both ranks take the older one."""
    told: list[str] = []
    found = checkpoint.newest_verified(folder, told.append)
    assert found is not None
    assert found.step == 1
    assert len(told) == (dist.get_rank() == 0)
    assert all("zero_pp_rank_1" in line and "step-00000002" in line for line in told)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    if what == "commit":
        for step in (1, 2):
            checkpoint.commit(folder, step, {}, _save, keep=2)
            assert checkpoint.verify_together(folder / f"step-{step:08d}") is None
    elif what == "agree":
        agree(folder)
    elif what == "die":
        checkpoint.commit(folder, 3, {}, _save_and_die, keep=2)
    dist.barrier()
    leave(0)


if __name__ == "__main__":
    main()
