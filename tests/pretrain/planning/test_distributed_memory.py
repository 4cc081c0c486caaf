"""Bytes of weights, gradients and optimizer state under every ZeRO stage are those of `maskwright plan`."""

import gc
import time
from typing import Any

import torch
import torch.distributed as dist

from pretrain.config import Config
from pretrain.engine import Engine
from pretrain.model import Encoder, EncoderCosts, EncoderShape
from pretrain.planning.training_memory import Memory, states
from tests.support.configs import least_config
from tests.support.engine_steps import rank_batches, take_step
from tests.support.ranks import check_on_ranks

# Odd sizes, so that what fills partitions up is seen, and parameters on either side of stage 3's threshold.
SHAPE = EncoderShape(vocab_size=101, layers=1, hidden=330, heads=3, intermediate=333, max_positions=33, pad_id=0)
SMALL = 8192  # bytes: a few scalars, and the memory of the process group
LETS_GO_SECONDS = 10.0  # for gloo's threads on a busy machine
CASES = [("fp32", str(stage), "adamw") for stage in range(4)] + [("bf16", str(stage), "adamw") for stage in (1, 2, 3)]
CASES += [("bf16", f"{stage}-cpu", "adamw") for stage in (1, 2, 3)]
CASES += [("bf16", "1", "muon"), ("fp32", "0", "muon"), ("bf16", "2", "ema")]


def config(precision: str, zero: str, optimizer: str) -> Config:
    stage, *offload = zero.split("-")
    optim: dict[str, Any] = {"ema": 0.9} if optimizer == "ema" else {"name": optimizer}
    zero_section = {"stage": int(stage), "offload": "cpu" if offload else "none"}
    train, checkpoint = {"precision": precision}, {"asynchronous": False}
    return least_config(optim=optim, zero=zero_section, train=train, checkpoint=checkpoint)


def living() -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors that Python knows, by address; a tensor on "meta" has none."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    return {storage.data_ptr(): storage for storage in storages}


def size(before: dict[int, torch.UntypedStorage]) -> int:
    """The bytes of all storages that were not there before."""
    return sum(storage.nbytes() for address, storage in living().items() if address not in before)


def step(engine: Engine) -> None:
    take_step(engine, rank_batches(0))
    engine.wait_for_weights()
    dist.barrier()  # gloo's threads hold tensors a little longer than the collectives last


def expected(items: list[Memory], zero: str) -> int:
    """Between two steps; at stage 0 gradients are let go after each."""
    kept = [item for item in items if item.when == "always" and not (zero == "0" and item.name == "gradients")]
    return sum(item.device + item.host for item in kept)


def check(precision: str, zero: str, optimizer: str) -> None:
    settings = config(precision, zero, optimizer)
    before = living()
    encoder = Encoder(SHAPE)
    encoder.initialize(0)
    engine = Engine(settings, encoder)
    step(engine)
    items = states(settings, EncoderCosts(SHAPE).sizes, dist.get_world_size(), "cpu")
    wanted, give_up = expected(items, zero), time.monotonic() + LETS_GO_SECONDS
    while (held := size(before)) - wanted >= SMALL and time.monotonic() < give_up:
        time.sleep(0.1)
    assert 0 <= held - wanted < SMALL, f"{precision} {zero} {optimizer}: {held} bytes, by the formula {wanted}: {items}"
    state = [value for values in engine.deepspeed.basic_optimizer.state.values() for value in values.values()]
    of_optimizer = sum(value.numel() * value.element_size() for value in state)
    planned = next(item for item in items if item.name == "optimizer state")
    assert of_optimizer == planned.device + planned.host, f"{precision} {zero} {optimizer}: {of_optimizer}, {planned}"
    engine.release()


def check_all() -> None:
    for case in CASES:
        check(*case)


def test_bytes_of_weights_gradients_and_optimizer_state():
    check_on_ranks(check_all, 2)
