"""ZeRO 1 exchanges gradients and weights during the passes: same bits, spans that overlap."""

import functools
import time
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.engine import Engine
from pretrain.model import Encoder, EncoderShape, Prediction
from tests.support import engine_steps
from tests.support.engine_steps import model, on_device, rank_batches, take_step
from tests.support.ranks import check_on_ranks

STEPS = 8
DEEP = EncoderShape(vocab_size=101, layers=6, hidden=256, heads=2, intermediate=1024, max_positions=32, pad_id=0)


def config(precision: str = "fp32", optimizer: str = "adamw", **zero: Any) -> Config:
    optim = {"name": optimizer, "eps": 1e-3, "grad_clip": 0.5}
    return engine_steps.config(precision, "1", optim=optim, zero={"stage": 1, **zero})


def step(engine: Engine, number: int) -> list[float]:
    """Cross-entropy, correct predictions, norm, skipped. Odd steps accumulate several micro-batches."""
    return take_step(engine, rank_batches(number % len(engine_steps.STEPS)))


def trained(settings: Config, encoder: Encoder) -> tuple[list[list[float]], dict[str, np.ndarray]]:
    """What the steps return, and the weights that the model computes with at last."""
    engine = Engine(settings, encoder)
    values = [step(engine, number) for number in range(STEPS)]
    weights = {name: p.detach().float().numpy().copy() for name, p in engine.module.named_parameters()}
    assert engine.weights_finite()
    engine.release()
    return values, weights


def check_bits() -> None:
    for precision, optimizer in (("fp32", "adamw"), ("fp32", "muon"), ("bf16", "adamw"), ("fp32", "lamb")):
        wanted, plain_weights = trained(config(precision, optimizer, overlap=False), model())
        assert any(norm > config().optim.grad_clip for _, _, norm, _ in wanted), "none is clipped"
        assert any((value != value.flat[0]).any() for value in plain_weights.values())
        for checkpoints in (False, True) if optimizer == "adamw" else (False,):
            overlapped = model()
            if checkpoints:
                overlapped.checkpoint_layers()
            values, weights = trained(config(precision, optimizer), overlapped)
            assert values == wanted, f"{precision} {optimizer}: {values}, not {wanted}"
            np.testing.assert_equal(weights, plain_weights, err_msg=f"{precision} {optimizer}")


class Trace:
    """Begins and ends of exchanges, and times of passes, in seconds. Gloo's threads end the exchanges."""

    def __init__(self) -> None:
        self.spans: dict[str, list[list[float]]] = {"all_to_all_single": [], "all_gather_into_tensor": []}
        self.forward: list[float] = []  # begin of each
        self.backward: list[float] = []  # the embeddings' gradients of each
        for name in self.spans:
            setattr(dist, name, functools.partial(self._exchange, getattr(dist, name), self.spans[name]))

    def watch(self, encoder: Encoder) -> None:
        encoder.embedding_norm.register_forward_pre_hook(lambda *_: self.forward.append(time.monotonic()))
        # Before the engine's hook, which may send these gradients.
        encoder.position_embedding.register_post_accumulate_grad_hook(lambda _: self.backward.append(time.monotonic()))

    def _exchange(self, plain: Any, spans: list[list[float]], *arguments: Any, **options: Any) -> Any:
        span = [time.monotonic()]
        spans.append(span)
        work = plain(*arguments, **options)
        if work is not None:
            work.get_future().add_done_callback(lambda _: span.append(time.monotonic()))
        return work


def check_trace() -> None:
    """Exchanges run during both passes."""
    trace, encoder = Trace(), model(shape=DEEP)
    trace.watch(encoder)
    engine = Engine(config(), encoder)
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
    """In bf16 half is sent, and little is lost."""
    for zero in ({"stage": 0}, {"stage": 1}, {"stage": 1, "offload": "cpu"}, {"stage": 2}, {"stage": 3}):
        norms = {}
        for dtype in ("fp32", "bf16"):
            engine = Engine(config(**zero, reduce_dtype=dtype), model())
            wrong = engine.rehearse(on_device(engine, rank_batches(1)))
            assert not wrong, f"ZeRO {zero}, {dtype}: {wrong}"
            norms[dtype] = [step(engine, number)[2] for number in range(2)]
            engine.release()
        assert norms["fp32"] != norms["bf16"], f"ZeRO {zero}: {norms}"
        np.testing.assert_allclose(norms["bf16"], norms["fp32"], rtol=1e-2, err_msg=str(zero))


class InTwoPasses(Encoder):
    """An encoder of which a weight gets gradients in two backward passes within one, the second one at the end."""

    def forward(self, tokens: Tensor, *stream: Any, **named: Any) -> Prediction:  # type: ignore[override]
        zero = self.word_embedding.sum() * 0
        late = checkpoint(lambda zero: self.head_dense.weight.sum() * (1 + zero), zero, use_reentrant=True)
        prediction = super().forward(tokens, *stream, **named)
        return prediction._replace(loss=prediction.loss + late)


def check_passes() -> None:
    """Gradients in several passes are refused or right."""
    engine = Engine(config(overlap=False), model(InTwoPasses))
    assert not engine.rehearse(on_device(engine, rank_batches(0)))
    assert step(engine, 0)[3] == 0
    engine.release()
    engine = Engine(config(), model(InTwoPasses))
    with pytest.raises(UserError, match=r"Set zero\.overlap to false"):
        step(engine, 0)


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_bits_are_those_of_exchanges_between_the_passes(ranks):
    check_on_ranks(check_bits, ranks)


@pytest.mark.parametrize("check", [check_trace, check_dtypes, check_passes])
def test_exchanges_during_the_passes(check):
    check_on_ranks(check, 2)
