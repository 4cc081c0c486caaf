"""One rank of test_saving: asynchronous saves of DeepSpeed's state during steps, and how long they stop training.

`python -m tests.pretrain.checkpoint.async_worker FOLDER`: for every layout, a checkpoint of one step is saved
synchronously, then asynchronously by a writer that waits until three more steps are done. The files must be the
same bytes.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from data_prep.common.processes import leave
from pretrain.checkpoint import Parts
from pretrain.engine import Engine, init_distributed
from tests.pretrain.engine import varying_worker as varying
from tests.pretrain.engine.gradients_worker import model, take_step
from tests.support import checkpoints


def steps(engine: Engine, count: int) -> None:
    for number in range(count):
        take_step(engine, varying.global_batches(number, dist.get_world_size())[dist.get_rank()], varying.LR)


def save_both_ways(folder: Path, precision: str, stage: int) -> None:
    engine = Engine(varying.config(precision, stage), model())
    steps(engine, 2)
    checkpoints.commit(folder / "before", 2, {}, engine.snapshot)
    trained = threading.Event()

    def after_training(write: Callable[[IO[bytes]], None]) -> Callable[[IO[bytes]], None]:
        def wait_and_write(file: IO[bytes]) -> None:
            assert trained.wait(60)
            write(file)

        return wait_and_write

    def snapshot(path: Path, copy: bool) -> Parts:
        return {name: after_training(write) for name, write in engine.snapshot(path, copy).items()}

    used = checkpoints.saver(folder / "meanwhile", snapshot)
    for again in (2, 3):  # the second time into the memory of the first
        trained.clear()
        used.begin(again, {})
        steps(engine, 3 if again == 2 else 1)
        trained.set()
        used.finish()
        assert used.saved_step == again
    used.close()
    steps(engine, 1)
    checkpoints.commit(folder / "after", 2, {}, engine.snapshot)
    engine.release()


def main(folder: Path) -> None:
    for precision, stage in varying.RUNS:
        path = folder / f"{precision}-{stage}"
        if dist.get_rank() == 0:
            for name in ("before", "meanwhile", "after"):
                (path / name).mkdir(parents=True)
        dist.barrier()
        save_both_ways(path, precision, stage)


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    leave(0)
