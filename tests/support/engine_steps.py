"""Small models, batches and steps of engines, for modules of tests that also run as several ranks."""

import re
from collections.abc import Sequence
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state

from pretrain.config import Config
from pretrain.data import Batch, DeviceFeed
from pretrain.engine import Engine
from pretrain.masking import Vocabulary
from pretrain.model import Encoder, EncoderShape
from tests.support.optimizers import MATRIX

SEQ_LEN = 32
SHAPE = EncoderShape(vocab_size=101, layers=2, hidden=32, heads=2, intermediate=64, max_positions=SEQ_LEN, pad_id=0)
VOCABULARY = Vocabulary(size=101, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
LR = 1e-2
# (rows, seq_len) of each micro-batch of a rank, step by step.
STEPS = [[(2, 32)], [(1, 16), (3, 8), (2, 16)], [(2, 24), (1, 32)], [(4, 8)]]
# Precision, and ZeRO's stage with what is offloaded.
RUNS = [("fp32", f"{stage}") for stage in range(4)] + [("bf16", f"{stage}") for stage in (1, 2, 3)]
RUNS += [("fp32", "2-cpu"), ("bf16", "1-cpu"), ("bf16", "3-cpu")]


def config(precision: str, zero: str, /, **sections: Any) -> Config:
    """`zero` as in RUNS. `sections`: of the config, in place of those here."""
    offload = "cpu" if zero.endswith("cpu") else "none"
    values = {
        "run": {"dir": "unused"},
        "data": {"train": "unused"},
        "optim": {"eps": 1e-3, "grad_clip": 0.5},  # a large eps: updates follow gradients without jumps
        "train": {"steps": 1, "precision": precision},
        "zero": {"stage": int(zero[0]), "offload": offload},
    }
    return Config.model_validate(values | sections)


def model(kind: type[Encoder] = Encoder, shape: EncoderShape = SHAPE) -> Encoder:
    encoder = kind(shape)
    encoder.initialize(0)
    return encoder


def global_batches(step: int, world_size: int) -> list[list[Batch]]:
    """The micro-batches of every rank: random tokens, two documents a row, and fewer predictions in some rows."""
    rng = np.random.default_rng([step, world_size])
    return [[_batch(rng, rows, seq_len) for rows, seq_len in STEPS[step]] for _ in range(world_size)]


def rank_batches(step: int) -> list[Batch]:
    """The micro-batches of this rank."""
    return global_batches(step, dist.get_world_size())[dist.get_rank()]


def _batch(rng: np.random.Generator, rows: int, seq_len: int) -> Batch:
    slots = rows * seq_len
    ends = [row * seq_len + end for row in range(rows) for end in (int(rng.integers(2, seq_len)), seq_len)]
    cu_seqlens = np.array([0, *ends], dtype=np.int32)
    lengths = np.diff(cu_seqlens)
    predicted = max(2, seq_len // 6)
    places = [row * seq_len + np.sort(rng.choice(seq_len, predicted, replace=False)) for row in range(rows)]
    labels = rng.integers(5, VOCABULARY.size, size=rows * predicted)
    labels[1 :: int(rng.integers(2, 5))] = -100
    return Batch(
        tokens=rng.integers(5, VOCABULARY.size, size=slots),
        positions=np.arange(slots) - np.repeat(cu_seqlens[:-1].astype(np.int64), lengths),
        cu_seqlens=cu_seqlens,
        masked_positions=np.concatenate(places),
        labels=labels,
        seq_len=seq_len,
        n_tokens=slots,
        n_replaced=0,
    )


def global_weights(engine: Engine, batches: Sequence[Batch]) -> torch.Tensor:
    """The predictions' weights of each objective, summed over all ranks."""
    totals = [batch.totals(len(engine.config.objectives))[1] for batch in batches]
    return engine.total(np.sum(totals, axis=0).tolist())


def on_device(engine: Engine, batches: Sequence[Batch]) -> list[Any]:
    feed = DeviceFeed(engine.device)
    return [feed(batch).wait() for batch in batches]


def take_step(engine: Engine, batches: Sequence[Batch], lr: float = LR) -> list[float]:
    """An optimizer step; what Engine.step returns: with one objective cross-entropy, correct, norm, skipped, ..."""
    objectives = [objective.weight or 1.0 for objective in engine.config.objectives]
    weights = global_weights(engine, batches)
    return engine.step(on_device(engine, batches), weights, lr, objectives=objectives).tolist()


def step_gradients(engine: Engine, batches: Sequence[Batch], lr: float = LR) -> dict[str, np.ndarray]:
    """Take a step; its full gradients by parameter, its loss a prediction of each objective ("loss") and gradient norm
    ("norm")."""
    recorded: dict[str, Any] = {}
    inner: Any = engine.deepspeed
    inner_step = inner.step

    def record_then_step() -> None:
        for name, parameter in inner.module.named_parameters():
            full = parameter.grad if inner.zero_optimization_stage() == 0 else safe_get_full_grad(parameter)
            recorded[name] = full.detach().float().numpy().copy()
        inner_step()

    inner.step = record_then_step
    n = len(engine.config.objectives)
    values = np.array(take_step(engine, batches, lr))
    inner.step = inner_step
    return recorded | {"loss": values[:n] / global_weights(engine, batches).numpy(), "norm": values[2 * n]}


def norm(gradients: Sequence[np.ndarray]) -> np.ndarray:
    return np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients))


def full_state(engine: Engine, key: str | None) -> dict[str, np.ndarray]:
    """The fp32 weights, or the state `key` of the parameters that have it, whole on every rank."""
    inner = engine.deepspeed
    stage = inner.zero_optimization_stage()
    if stage in (1, 2) and key:
        # DeepSpeed links the moments to the parameters after stepping the first group, when the second has none yet.
        inner.optimizer._hp_optimizer_states_linked = False
        inner.optimizer._lazy_init_hp_params_optimizer_state()
    whole = {}
    for name, parameter in inner.module.named_parameters():
        is_muons = engine.config.optim.name == "muon" and bool(re.fullmatch(MATRIX, name))
        if key not in (None, "ema") and is_muons != (key == "momentum_buffer"):
            continue
        if stage == 0:
            value = inner.basic_optimizer.state[parameter][key] if key else parameter
        else:
            value = safe_get_full_optimizer_state(parameter, key) if key else safe_get_full_fp32_param(parameter)
        whole[name] = value.detach().float().numpy().copy()
    return whole


def record(engine: Engine) -> dict[str, np.ndarray]:
    """The whole state, and the number of steps."""
    inner = engine.deepspeed
    state = full_state(engine, None)
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=engine.config.zero.stage == 3):
            low = parameter.detach().float().clone()
        wanted = torch.from_numpy(state[name]).to(parameter.dtype).float()
        assert torch.equal(low, wanted), f"{name}: the model computes with others"
    states = inner.basic_optimizer.state.values()
    for key in sorted({key for each in states for key in each} - {"step"}):
        state |= {f"{name} {key}": value for name, value in full_state(engine, key).items()}
    (count,) = {float(each["step"]) for each in states if "step" in each}
    return state | {"step": np.array(count, dtype=np.float32)}
