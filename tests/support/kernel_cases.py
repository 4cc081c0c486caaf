"""The kernels of layers compared with plain torch and float64, on any device.

These run in a process that has Triton's interpreter (tests.support.triton_process), or on a GPU; nothing
here imports Triton by itself.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.kernels import PLAIN, Operations, Tiles, adamw, operations
from pretrain.kernels.plain import rotation
from pretrain.masking import IGNORED
from pretrain.model import Encoder, EncoderShape

Errors = dict[str, tuple[float, float]]
Made = tuple[dict[str, Tensor], Callable[..., tuple[Tensor, ...]]]

# Largest error against float64 on the same inputs, relative to the largest value of each result. For bf16 it is one
# unit in the last place (7.8e-3): GPUs round to half of it, the interpreter cuts off. Sums of a table's rows err more.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
ENCODER_BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 4e-2}  # of a whole encoder

OPERATIONS = {
    "words embed": {"positions": False},
    "words and positions embed": {"positions": True},
    "norm": {"residual": None, "bias": False},
    "norm with bias": {"residual": None, "bias": True},
    "sum and norm": {"residual": "matrix", "bias": False},
    "sum and norm with bias": {"residual": "matrix", "bias": True},
    "sum with one row": {"residual": "row", "bias": True},
    "biased sum and norm": {"residual": "matrix", "bias": False, "x_bias": True},
    "biased sum and norm with bias": {"residual": "matrix", "bias": True, "x_bias": True},
    "gelu": {"bias": False},
    "bias and gelu": {"bias": True},
    "geglu": {},
    "rotary": {"parts": (4, 4, 4), "rotated": 2},
    "grouped rotary": {"parts": (4, 2, 2), "rotated": 2},
    "key and value rotary": {"parts": (4, 4), "rotated": 1},
}


def errors(operation: str, n: int, hidden: int, dtype: torch.dtype, device: str, programs: int | None = None) -> Errors:
    """The errors of the kernel and of plain torch, for each result and each gradient.

    Args:
        programs: how many may sum up a weight's gradient; as on a GPU by default.
    """
    make = {"gelu": _gelu, "geglu": _geglu, "rotary": _rotary, "embed": _embed}.get(operation.split()[-1], _norm)
    torch.manual_seed(0)
    inputs, call = make(n, hidden, **OPERATIONS[operation])
    inputs = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    outer = [torch.randn(n, 4 * hidden) for _ in range(3)]  # gradients of the results
    found = []
    for using, to in ((operations(True), dtype), (PLAIN, dtype), (PLAIN, torch.float64)):
        with ExitStack() as stack:
            for module in ("norm", "activation") if programs else ():
                stack.enter_context(patch(f"pretrain.kernels.{module}._PROGRAMS", programs))
            leaves = {name: tensor.to(device, to, copy=True).requires_grad_() for name, tensor in inputs.items()}
            results = call(using, **leaves)
            gradients = [wide[:, : part[0].numel()].to(dtype) for wide, part in zip(outer, results, strict=False)]
            torch.autograd.backward(
                results, [g.reshape(part.shape).to(device, to) for g, part in zip(gradients, results, strict=True)]
            )
        named = {f"result {number}": part.detach() for number, part in enumerate(results)}
        assert all(leaf.grad is not None for leaf in leaves.values())
        found.append(named | {f"gradient of {name}": leaf.grad for name, leaf in leaves.items()})
    return _compared(*found)


def _compared(fused: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> Errors:
    for name, tensor in fused.items():
        assert tensor.dtype == plain[name].dtype
        assert tensor.shape == plain[name].shape
    largest = {name: tensor.abs().max().item() for name, tensor in exact.items()}

    def error(tensor: Tensor, name: str) -> float:
        return (tensor.double() - exact[name]).abs().max().item() / (largest[name] or 1.0)

    return {name: (error(fused[name], name), error(plain[name], name)) for name in exact}


def _norm(n: int, hidden: int, residual: str | None, bias: bool, x_bias: bool = False) -> Made:
    inputs = {"x": torch.randn(n, hidden) * 3 + 1, "weight": 1 + 0.1 * torch.randn(hidden)}
    if residual:
        inputs["residual"] = torch.randn(n if residual == "matrix" else 1, hidden)
    if bias:
        inputs["bias"] = torch.randn(hidden)
    if x_bias:
        inputs["x_bias"] = torch.randn(hidden)

    def call(using: Operations, x, weight, residual=None, bias=None, x_bias=None) -> tuple[Tensor, ...]:
        return using.add_norm(x, None if residual is None else residual.expand_as(x), weight, bias, 1e-5, x_bias)

    return inputs, call


def _embed(n: int, hidden: int, positions: bool) -> Made:
    """Some words and positions come often, others never."""
    tokens, places = torch.randint(3, 20, (n,)), torch.arange(n) % 7 + 2
    inputs = {"words": torch.randn(23, hidden), "weight": 1 + 0.1 * torch.randn(hidden)}
    if positions:
        inputs |= {"table": torch.randn(11, hidden), "kind": torch.randn(hidden), "bias": torch.randn(hidden)}

    def call(using: Operations, words, weight, table=None, kind=None, bias=None) -> tuple[Tensor, ...]:
        at = places.to(words.device) if positions else None
        return using.embed_norm(tokens.to(words.device), words, at, table, kind, weight, bias, 1e-5)

    return inputs, call


def _gelu(n: int, hidden: int, bias: bool) -> Made:
    inputs = {"x": torch.randn(n, hidden) * 2}
    if bias:
        inputs["bias"] = torch.randn(hidden)
    unit = torch.eye(hidden)

    def call(using: Operations, x, bias=None) -> tuple[Tensor, ...]:
        return (using.linear_gelu(x, unit.to(x), bias),)

    return inputs, call


def _geglu(n: int, hidden: int) -> Made:
    return {"halves": torch.randn(n, 2 * hidden) * 2}, lambda using, halves: (using.geglu(halves.clone()),)


def _rotary(n: int, hidden: int, parts: tuple[int, ...], rotated: int) -> Made:
    per_head = hidden // 4
    positions = torch.arange(n) % 19 * 31

    def call(using: Operations, qkv) -> tuple[Tensor, ...]:
        # The same rounded angles for all: what is measured is the turning.
        cos, sin = rotation(positions, per_head, 10_000.0, torch.bfloat16)
        return using.rotate_heads(qkv.clone(), parts, rotated, (cos.to(qkv), sin.to(qkv)))

    return {"qkv": torch.randn(n, sum(parts) * per_head)}, call


def loss_errors(
    n: int, n_ids: int, z_loss: float, dtype: torch.dtype, device: str, weighted: bool = False
) -> tuple[Errors, bool]:
    """As `errors`, of the loss over a padded vocabulary; and whether it finds the same choices right as plain torch.

    The gradient's column sums are compared too.

    Some rows are ignored, some have their label's logit as their largest, and some as one of two that are largest.
    """
    torch.manual_seed(0)
    logits = (torch.randn(n, -(-n_ids // 64) * 64) * 3).to(dtype)
    labels = torch.randint(1, n_ids, (n,))
    rows = torch.arange(n)
    logits[rows[::3], labels[::3]] = logits.amax(1)[::3] + 1
    logits[rows[::6], labels[::6] - 1] = logits[rows[::6], labels[::6]]  # an equal one before: that is chosen
    labels[1] = (labels[0] + 1).clamp(max=n_ids - 1)
    logits[1, labels[1] :] = logits[1].max() + 1  # equal ones after: the label is chosen
    labels[4::5] = IGNORED
    logits[:, n_ids:] = -1e4
    weights = torch.rand(n) if weighted else None
    inputs = labels.to(device), None if weights is None else weights.to(device), z_loss
    found, right = [], []
    for using in (operations(True), PLAIN):
        mine = logits.to(device, copy=True)
        kept, nothing = using.cross_entropy(mine, *inputs, False)
        assert nothing is None
        assert torch.equal(mine.cpu(), logits), "the logits of a model that does not learn have changed"
        of_rows, of_columns = using.cross_entropy(mine, *inputs, True)
        assert torch.equal(of_rows, kept)
        sums = of_rows.sum(0)
        assert not mine.cpu()[labels == IGNORED].any()
        assert not of_columns[n_ids:].any()
        right.append(sums[2].item())
        found.append({"loss": sums[0], "cross-entropy": sums[1], "gradient": mine, "column sums": of_columns})
    exact = logits.double()[:, :n_ids].requires_grad_()
    used = labels != IGNORED
    counts = 1 if weights is None else weights
    plain = F.cross_entropy(exact, labels, ignore_index=IGNORED, reduction="none")
    loss = ((plain + z_loss * exact.logsumexp(1).square() * used) * counts).sum()
    (gradient,) = torch.autograd.grad(loss, exact)
    gradient = F.pad(gradient, (0, logits.shape[1] - n_ids))
    wanted = {"loss": loss.detach(), "cross-entropy": (plain * counts).detach().sum(), "gradient": gradient}
    wanted["column sums"] = gradient.sum(0)
    assert 0 < right[1] < used.sum()
    return _compared(*found, {name: tensor.to(device) for name, tensor in wanted.items()}), right[0] == right[1]


FORMS = {
    "bert": {"arch": "bert", "intermediate": 100},
    "modernbert": {"arch": "modernbert", "intermediate": 50, "norm_eps": 1e-5, "window": 8},
    "modernbert with tiles": {"arch": "modernbert", "hidden": 64, "heads": 2, "intermediate": 50, "window": 8},
    "eurobert": {"arch": "eurobert", "intermediate": 50, "norm_eps": 1e-5, "kv_heads": 2},
    "esm": {"arch": "esm", "intermediate": 100, "norm_eps": 1e-5, "mask_id": 9},
}


def _batch() -> tuple[Tensor, ...]:
    """A stream of 72 slots, and its row length."""
    lengths = [24, 9, 12, 3, 10, 14]
    labels = torch.randint(5, 101, (9,))
    labels[-1] = IGNORED
    return (
        torch.randint(5, 101, (72,)),
        torch.cat([torch.arange(length) for length in lengths]),
        torch.tensor([0, *lengths]).cumsum(0).int(),
        torch.tensor([1, 5, 23, 25, 34, 46, 50, 71, 0]),
        labels,
    )


class Additions(TorchDispatchMode):
    """Counts what autograd adds in passes over [N, D]: two tensors, or the rows of one."""

    def __init__(self, shape: tuple[int, int]):
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.add.Tensor, aten.add_.Tensor, aten.sum.dim_IntList):
            self.count += tuple(args[0].shape) == self.shape
        return func(*args, **(kwargs or {}))


def gradient_additions(form: str, device: str) -> tuple[int, int]:
    """Passes over [N, D] that add gradients in an encoder's backward pass: with the kernels, and in plain torch."""
    shape = EncoderShape(101, layers=3, max_positions=24, pad_id=0, **({"hidden": 72, "heads": 4} | FORMS[form]))
    batch, counts = [tensor.to(device) for tensor in _batch()], []
    for using in (operations(True), PLAIN):
        encoder = Encoder(shape, 0.0, "sdpa", using).to(device)
        encoder.initialize(0)
        loss = encoder(*batch, 24).loss
        with Additions((72, shape.hidden)) as additions:
            loss.backward()
        counts.append(additions.count)
    return counts[0], counts[1]


def encoder_errors(form: str, dtype: torch.dtype, device: str, checkpointing: bool = False) -> Errors:
    """As `errors`, of the loss and of every gradient of a whole encoder; checkpointed where it has the kernels."""
    shape = EncoderShape(101, layers=3, max_positions=24, pad_id=0, **({"hidden": 72, "heads": 4} | FORMS[form]))
    torch.manual_seed(0)
    batch = tuple(tensor.to(device) for tensor in _batch())
    weights = Encoder(shape)
    weights.initialize(0)
    for parameter in weights.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    weights.reset_padding_rows()
    state = {name: tensor.to(dtype) for name, tensor in weights.state_dict().items()}
    found, exact = [], _exact()
    for using, to in ((operations(True), dtype), (PLAIN, dtype), (exact, torch.float64)):
        encoder = Encoder(shape, 1e-3, "sdpa", using).to(device, to)
        encoder.load_state_dict(state)
        if checkpointing and using not in (PLAIN, exact):
            encoder.checkpoint_layers()
        prediction = encoder(*batch, 24)
        prediction.loss.backward()
        gradients = {name: parameter.grad for name, parameter in encoder.named_parameters()}
        found.append({"loss": prediction.loss, "cross-entropy": prediction.cross_entropy} | gradients)
    return _compared(*found)


def _exact() -> Operations:
    """PLAIN, with the loss in the precision of its logits."""

    def cross_entropy(logits, labels, weights, z_loss, learns) -> tuple[Tensor, Tensor]:
        assert weights is None
        with torch.enable_grad():
            values = logits.detach().clone().requires_grad_()
            plain = F.cross_entropy(values, labels, ignore_index=IGNORED, reduction="none")
            loss = plain + z_loss * (values.logsumexp(1).square() * (labels != IGNORED))
            (gradient,) = torch.autograd.grad(loss.sum(), values)
        logits.copy_(gradient)
        return torch.stack([loss, plain, torch.zeros_like(plain)], dim=1).detach().float(), logits.sum(0)

    return PLAIN._replace(cross_entropy=cross_entropy)


def window_errors(
    lengths: list[int], reach: int, dtype: torch.dtype, device: str, per_head: int = 32, heads: int = 2
) -> Errors:
    """As `errors`, of attention within documents and a window. Plain torch takes one document after the other."""
    torch.manual_seed(0)
    n = sum(lengths)
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    longest = torch.arange(max(lengths), device=device)
    near = (longest[:, None] - longest).abs() <= reach
    qkv = torch.randn(n, 3 * heads * per_head).to(dtype)
    of_out = torch.randn(n, heads, per_head).to(dtype)
    rounded = rotation(positions, per_head, 10_000.0, dtype)
    found = []
    for fused, to in ((True, dtype), (False, dtype), (False, torch.float64)):
        leaf = qkv.to(device, to, copy=True).requires_grad_()
        by = rounded[0].to(to), rounded[1].to(to)
        kernel = operations(True).window_attention
        if fused and kernel:
            out = kernel(leaf, heads, by, Tiles.of(bounds, n), reach)
        else:
            parts = (
                part.transpose(0, 1).split(lengths, dim=1) for part in PLAIN.rotate_heads(leaf, (heads,) * 3, 2, by)
            )
            out = torch.cat([_near_attention(*document, near) for document in zip(*parts, strict=True)])
        out.backward(of_out.to(device, to))
        found.append({"result": out.detach(), "gradient": leaf.grad})
    return _compared(*found)


def _near_attention(q: Tensor, k: Tensor, v: Tensor, near: Tensor) -> Tensor:
    """Attention of one document, [H, L, E] to [L, H, E]."""
    length = q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=near[:length, :length]).transpose(0, 1)


def adamw_errors(n: int, dtype: torch.dtype, device: str) -> Errors:
    """As `errors`, of all that two steps of AdamW change. Skipped steps between them change nothing."""
    torch.manual_seed(0)
    start = {"weights": torch.randn(n), "exp_avg": torch.randn(n), "exp_avg_sq": torch.rand(n), "step": torch.zeros(())}
    first, second = (torch.randn(2, n) * 3).to(dtype)
    divisor, (no, yes) = torch.tensor(1.7, device=device), torch.tensor([[0.0], [1.0]], device=device)
    settings = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.1}
    found = []
    kernel = operations(True).adamw
    assert kernel
    for using, to in ((kernel, torch.float32), (adamw, torch.float32), (adamw, torch.float64)):
        state = {name: tensor.to(device, to, copy=True) for name, tensor in start.items()}
        state["step"], copies = state["step"].float(), torch.empty(n, dtype=dtype, device=device)

        def step(gradient: Tensor, skipped: Tensor, by: Tensor | None) -> None:
            tensors = state["weights"], gradient.to(device, copy=True), state, copies  # noqa: B023
            using(*([each] for each in tensors), settings, by, skipped[0])  # noqa: B023

        step(first, no, None)
        kept = [tensor.clone() for tensor in (*state.values(), copies)]
        step(torch.full_like(first, torch.inf), yes, divisor)
        assert all(map(torch.equal, kept, (*state.values(), copies))), "a skipped step has changed something"
        step(second, no, divisor)
        assert (copies - state["weights"].to(dtype)).abs().max() <= BOUNDS[dtype] * copies.abs().max()
        found.append(state)
    return _compared(*found[:2], {name: tensor.double() for name, tensor in found[2].items()})


def second_backward(operation: str, device: str) -> str:
    """The error of torch for a second backward pass through a kernel that has overwritten its saved tensors."""
    inputs, call = (_gelu(3, 8, True) if operation == "gelu" else _geglu(3, 8))[:2]
    (result,) = call(operations(True), **{name: tensor.to(device).requires_grad_() for name, tensor in inputs.items()})
    result.sum().backward(retain_graph=True)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing"
