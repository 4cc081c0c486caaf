"""One rank: exchanges of ZeRO 1 during the passes. Fails if a value is wrong.

`python -m tests.pretrain.engine.overlap_worker bits|trace|dtypes|passes`:

bits: the same losses, norms and weights as with exchanges between the passes.
trace: the exchanges run while the passes do.
dtypes: gradients that are sent in bf16 are near those that are sent in fp32, and not equal.
passes: gradients from several backward passes in one are refused, or right without overlap.
"""

import functools
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from data_prep.common.errors import UserError
from data_prep.common.processes import leave
from pretrain.config import Config
from pretrain.data import DeviceFeed
from pretrain.engine import Engine, init_distributed
from pretrain.model import Encoder, EncoderShape, Prediction
from tests.pretrain.engine import varying_worker as varying
from tests.pretrain.engine.gradients_worker import SHAPE

STEPS = 8
DEEP = EncoderShape(vocab_size=101, layers=6, hidden=256, heads=2, intermediate=1024, max_positions=32, pad_id=0)


def encoder(kind: type[Encoder] = Encoder, shape: EncoderShape = SHAPE) -> Encoder:
    found = kind(shape)
    found.initialize(0)
    return found


def config(precision: str = "fp32", optimizer: str = "adamw", **zero: Any) -> Config:
    values = varying.config(precision, "1").model_dump(mode="json", exclude_unset=True)
    values["optim"]["name"] = optimizer
    values["zero"] |= zero
    return Config.model_validate(values)


def step(engine: Engine, number: int, compared: dict[str, float] | None = None) -> list[float]:
    """Cross-entropy, correct predictions, norm, skipped. Odd steps accumulate several micro-batches."""
    batches = varying.global_batches(number % len(varying.STEPS), dist.get_world_size())[dist.get_rank()]
    predictions = engine.total([sum(int((batch.labels >= 0).sum()) for batch in batches)])
    feed = DeviceFeed(engine.device)
    report = None if compared is None else compared.update
    inputs = [feed(batch).wait() for batch in batches]
    return engine.step(inputs, predictions[0], varying.LR, report_gradients=report).tolist()


def trained(settings: Config, model: Encoder) -> tuple[list[list[float]], dict[str, np.ndarray]]:
    """What the steps return, and the weights that the model computes with at last."""
    engine = Engine(settings, model)
    values = [step(engine, number) for number in range(STEPS)]
    weights = {name: p.detach().float().numpy().copy() for name, p in engine.module.named_parameters()}
    assert engine.weights_finite()
    engine.release()
    return values, weights


def check_bits() -> None:
    for precision, optimizer in (("fp32", "adamw"), ("fp32", "muon"), ("bf16", "adamw"), ("fp32", "lamb")):
        for checkpoints in (False, True):
            overlapped, plain = encoder(), encoder()
            if checkpoints:
                overlapped.checkpoint_layers()
            values, weights = trained(config(precision, optimizer), overlapped)
            wanted, plain_weights = trained(config(precision, optimizer, overlap=False), plain)
            assert values == wanted, f"{precision} {optimizer}: {values}, not {wanted}"
            largest = config().optim.grad_clip
            assert any(norm > largest for _, _, norm, _ in values), "none is clipped"
            for name, value in plain_weights.items():
                assert np.array_equal(weights[name], value), f"{precision} {optimizer}: {name}"
            assert any((value != value.flat[0]).any() for value in plain_weights.values())


class Trace:
    """Begins and ends of exchanges, and times of passes, in seconds. Gloo's threads end the exchanges."""

    def __init__(self) -> None:
        self.spans: dict[str, list[list[float]]] = {"all_to_all_single": [], "all_gather_into_tensor": []}
        self.forward: list[float] = []  # begin of each
        self.backward: list[float] = []  # the embeddings' gradients of each
        for name in self.spans:
            setattr(dist, name, functools.partial(self._exchange, getattr(dist, name), self.spans[name]))

    def watch(self, model: Encoder) -> None:
        model.embedding_norm.register_forward_pre_hook(lambda *_: self.forward.append(time.monotonic()))
        # Before the engine's hook, which may send these gradients.
        model.position_embedding.register_post_accumulate_grad_hook(lambda _: self.backward.append(time.monotonic()))

    def _exchange(self, plain: Any, spans: list[list[float]], *arguments: Any, **options: Any) -> Any:
        span = [time.monotonic()]
        spans.append(span)
        work = plain(*arguments, **options)
        if work is not None:
            work.get_future().add_done_callback(lambda _: span.append(time.monotonic()))
        return work


def check_trace() -> None:
    trace, model = Trace(), encoder(shape=DEEP)
    trace.watch(model)
    engine = Engine(config(), model)
    for _ in range(10):  # gloo's threads may be so fast that nothing is left for the forward pass
        for _ in range(2):
            step(engine, 0)
        # A bucket of each layer, the first one with embeddings and vectors. The exchanges of the first step have ended.
        assert len(trace.spans["all_to_all_single"]) == DEEP.layers * len(trace.backward)
        assert len(trace.spans["all_gather_into_tensor"]) == DEEP.layers * len(trace.backward)
        first = np.array(trace.spans["all_to_all_single"][-2 * DEEP.layers : -DEEP.layers])
        gathered = np.array(trace.spans["all_gather_into_tensor"][-2 * DEEP.layers : -DEEP.layers])
        assert first[0, 0] < trace.backward[-2], "the first sum began after the backward pass"
        assert (first[:-1, 0] < trace.backward[-2]).all(), "so did others"
        if gathered[-1, 1] > trace.forward[-1]:
            break
    else:
        raise AssertionError("the weights of the last layers were always gathered before the forward pass")
    assert trace.forward[-1] < trace.backward[-1]
    engine.release()


def check_dtypes() -> None:
    for zero in ({"stage": 0}, {"stage": 1}, {"stage": 1, "offload": "cpu"}, {"stage": 2}, {"stage": 3}):
        norms = {}
        for dtype in ("fp32", "bf16"):
            engine = Engine(config(**zero, reduce_dtype=dtype), encoder())
            found: dict[str, float] = {}
            norms[dtype] = [step(engine, number, found)[2] for number in range(2)]
            assert not found, f"ZeRO {zero}, {dtype}: {found}"
            engine.release()
        assert norms["fp32"] != norms["bf16"], f"ZeRO {zero}: {norms}"
        np.testing.assert_allclose(norms["bf16"], norms["fp32"], rtol=1e-2, err_msg=str(zero))


class InTwoPasses(Encoder):
    """An encoder of which a weight gets gradients in two backward passes within one, the second one at the end."""

    def forward(self, tokens: Tensor, *stream: Any, **named: Any) -> Prediction:  # type: ignore[override]
        zero = self.word_embedding.sum() * 0
        late = checkpoint(lambda zero: self.head_dense.weight.sum() * (1 + zero), zero, use_reentrant=True)
        found = super().forward(tokens, *stream, **named)
        return found._replace(loss=found.loss + late)


def check_passes() -> None:
    engine = Engine(config(overlap=False), encoder(InTwoPasses))
    found: dict[str, float] = {}
    assert step(engine, 0, found)[3] == 0
    assert not found
    engine.release()
    engine = Engine(config(), encoder(InTwoPasses))
    with pytest.raises(UserError, match=r"Set zero\.overlap to false"):
        step(engine, 0)


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    checks = {"bits": check_bits, "trace": check_trace, "dtypes": check_dtypes, "passes": check_passes}
    checks[sys.argv[1]]()
    dist.barrier()
    leave(0)
