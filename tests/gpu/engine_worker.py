"""One rank: a skipped step changes no weights and state, on any device of the optimizer's tensors; gradients are right.

`python -m tests.gpu.engine_worker`; the masters of offloaded weights are on the host, and the gradients on the GPU.
"""

import torch

from data_prep.common.processes import leave
from pretrain.engine import Engine, init_distributed
from pretrain.engine.resharding import local_pieces
from tests.pretrain.guards.test_distributed_guards import faulty, step
from tests.support.engine_steps import config, model, on_device, rank_batches

SKIPS = 20  # one that is not waited for may be met in time by chance


def held(engine: Engine) -> list[torch.Tensor]:
    """Copies of the fp32 weights and their state."""
    state = engine.deepspeed.basic_optimizer.state
    tensors = [each for flat, _ in local_pieces(engine.deepspeed) for each in (flat, *state[flat].values())]
    return [tensor.detach().clone() for tensor in tensors]


def check(zero: str) -> None:
    engine = Engine(config("bf16", zero), model())
    assert step(engine, 0)[3] == 0
    for _ in range(SKIPS):
        before = held(engine)
        faulty("nan_gradient", 0).before_step(1, engine.module)
        assert step(engine, 1)[3] == 1, zero
        assert all(map(torch.equal, held(engine), before)), f"ZeRO {zero}: changed by a step that was skipped"
        assert step(engine, 2)[3] == 0, zero
        assert not any(map(torch.equal, held(engine), before)), f"ZeRO {zero}: a step has changed nothing"
    engine.release()


def check_gradients(zero: str) -> None:
    engine = Engine(config("bf16", zero), model())
    assert engine.rehearse(on_device(engine, rank_batches(1))) == {}
    engine.release()


if __name__ == "__main__":
    init_distributed()
    for zero in ("1", "2", "3", "1-cpu", "2-cpu", "3-cpu"):
        check_gradients(zero)
    for zero in ("1", "1-cpu", "2-cpu", "3-cpu"):
        check(zero)
    leave(0)
