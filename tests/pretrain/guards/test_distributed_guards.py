"""Skipped and trial steps leave no trace, and differing replicas are found, for every ZeRO stage and precision.

Weights, moments and the step count are compared exactly.
"""

import math
import weakref
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS
from torch.utils._python_dispatch import TorchDispatchMode

from data_prep.common.errors import UserError
from pretrain.engine import Engine
from pretrain.guards import check_replicas
from tests.support.engine_steps import LR, RUNS, config, global_weights, model, on_device, rank_batches, record
from tests.support.fault_injection import Faults
from tests.support.ranks import check_on_ranks

HOSTS = ["here", "there"]


def faulty(kind: str, rank: int) -> Faults:
    """A fault of this kind at step 1 of one rank."""
    return Faults(dist.get_rank(), f"{kind}:rank={rank},step=1")


class NoQuestions(TorchDispatchMode):
    """Fails where the host asks for a value: on a GPU it would wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def step(engine: Engine, number: int, asks: bool = True) -> list[float]:
    """Cross-entropy, correct, norm, skipped. Without `asks`, the host asks for no value after the backward passes."""
    phases: list[str] = []
    inputs, weights = on_device(engine, rank_batches(number)), global_weights(engine, rank_batches(number))
    with ExitStack() as watched:

        def listen(phase: str) -> None:
            phases.append(phase)
            if phase == "step":
                watched.enter_context(NoQuestions())

        if not asks:
            engine.marker.listener = listen
        output = engine.step(inputs, weights, LR)
        engine.marker.listener = None
    assert asks or "step" in phases
    return output.tolist()


def weights(engine: Engine) -> dict[str, np.ndarray]:
    """The weights that this rank holds; with ZeRO 3, its partition."""
    tensors = {name: getattr(p, "ds_tensor", p).detach() for name, p in engine.module.named_parameters()}
    return {name: tensor.float().cpu().numpy().copy() for name, tensor in tensors.items()}


def check(precision: str, zero: str) -> None:
    what = f"{precision}, ZeRO {zero}"
    settings = config(precision, zero)
    plain = Engine(settings, model())
    for number in (0, 1):
        assert step(plain, number, asks=zero not in ("0", "1", "2"))[3] == 0
    wanted = record(plain)
    optimizer = weakref.ref(plain.deepspeed.optimizer)
    plain.release()
    assert optimizer() is None or zero not in ("1", "2"), f"{what}: a rollback would hold both"

    engine = Engine(settings, model())
    assert ZERO_SUPPORTED_OPTIMIZERS.count(type(engine.deepspeed.basic_optimizer)) == 1, "it grows at each rollback"
    before = weights(engine)
    random = torch.get_rng_state()
    assert engine.rehearse(on_device(engine, rank_batches(1))) == {}
    np.testing.assert_equal(weights(engine), before, err_msg=f"{what}, trial step")
    assert torch.equal(torch.get_rng_state(), random)
    assert engine.deepspeed.global_steps == engine.deepspeed.skipped_steps == 0
    assert step(engine, 0)[3] == 0
    before = record(engine)
    for rank in (0, 1):
        faulty("nan_gradient", rank).before_step(1, engine.module)
        loss, _, norm, skipped = step(engine, 1)  # it adds up three micro-batches
        assert skipped == 1, what
        assert math.isfinite(loss)
        assert not math.isfinite(norm), f"{what}: {norm}"
        np.testing.assert_equal(record(engine), before, err_msg=f"{what}, NaN on rank {rank}")
    assert step(engine, 1)[3] == 0
    np.testing.assert_equal(record(engine), wanted, err_msg=f"{what}, after skipped steps")
    assert engine.weights_finite()
    check_bits(engine, what)
    engine.release()


def check_bits(engine: Engine, what: str) -> None:
    """A flipped bit is seen by both ranks, and so is a weight that is not finite."""
    step(engine, 2)  # which gathers what ZeRO 3 holds on every rank
    assert engine.replicas()
    check_replicas(engine.replicas(), HOSTS, 2, engine.device)
    faulty("flip_bit", 1).after_step(1, engine.module)
    with pytest.raises(UserError, match=r"rank 0 \(on here\), rank 1 \(on there\) differ from each other, first in"):
        check_replicas(engine.replicas(), HOSTS, 2, engine.device)
    if dist.get_rank() == 1:
        parameter = next(engine.module.parameters())
        getattr(parameter, "ds_tensor", parameter).data.view(-1)[-1] = math.inf
    assert not engine.weights_finite(), what


def check_all() -> None:
    for precision, zero in RUNS:
        check(precision, zero)


def test_skipped_and_trial_steps_leave_no_trace_and_flipped_bits_are_seen():
    check_on_ranks(check_all, 2)
