"""Where flash attention computes it, the last layer has queries only where something is predicted."""

import functools

import numpy as np
import pytest
import torch

from pretrain.config import View
from pretrain.masking import IGNORED, RowGroup
from pretrain.masking.rows import compact
from pretrain.model import Encoder
from pretrain.model import attention as attention_module
from tests.support.streams import plain_varlen, shape_of, stream

S, PLACES = 32, 6
LENGTHS = [20, 12, 32, 7, 5, 1, 19, 32]  # of documents in four rows
PREDICTED = [[25, 28], [0, 1, 5, 30], [3, 8, 19, 21, 25, 31], []]  # by row


def batch() -> dict[str, torch.Tensor]:
    """Four rows with unused places; documents, and one row, predict nothing."""
    predicted = np.zeros((len(PREDICTED), S), bool)
    for row, places in enumerate(PREDICTED):
        predicted[row, places] = True
    positions, used = (torch.from_numpy(array).flatten() for array in compact(predicted, PLACES))
    labels = torch.randint(5, 90, (len(positions),), generator=torch.Generator().manual_seed(2))
    return stream(LENGTHS) | {"masked_positions": positions, "labels": labels.where(used, IGNORED)}


def outcome(model: Encoder, backend: str, monkeypatch, **changes: object) -> tuple[list[torch.Tensor], list[int]]:
    """Loss and gradients, and the number of queries of each layer."""
    asked = []

    def varlen(q, *others, **options):
        asked.append(len(q))
        return plain_varlen(q, *others, **options)

    monkeypatch.setattr(attention_module, "_varlen", lambda: varlen)
    model.backend = backend
    loss = model(**batch(), seq_len=S, **changes).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))], asked


def encoder(arch: str, **changes: object) -> Encoder:
    model = Encoder(shape_of(arch, **{"layers": 4} | changes))
    model.initialize(1)
    return model.double()


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("arch", ["bert", "modernbert", "eurobert", "esm"])
def test_loss_and_gradients_are_those_of_the_whole_layer(arch, checkpointed, monkeypatch):
    model = encoder(arch)
    if checkpointed:
        model.checkpoint_layers()
    n, k = sum(LENGTHS), PLACES * len(PREDICTED)
    whole, _ = outcome(model, "sdpa", monkeypatch)
    some, asked = outcome(model, "varlen", monkeypatch)
    assert asked[:4] == [n, n, n, k]
    for part, expected in zip(some, whole, strict=True):
        torch.testing.assert_close(part, expected)


def test_objectives_of_one_view_may_have_different_numbers_of_places(monkeypatch):
    groups = tuple(RowGroup(row, View.BIDIRECTIONAL, 2, places) for row, places in ((0, 20), (1, 4)))
    whole, some = (outcome(encoder("bert"), backend, monkeypatch, groups=groups)[0] for backend in ("sdpa", "varlen"))
    for part, expected in zip(some, whole, strict=True):
        torch.testing.assert_close(part, expected)


@pytest.mark.parametrize(
    ("arch", "shape", "view"),
    [
        ("modernbert", {"layers": 3}, View.BIDIRECTIONAL),  # the last layer is local
        ("bert", {"causal": True}, View.CAUSAL),
        ("bert", {"sep_id": 3}, View.PREFIX),
        ("bert", {}, None),
    ],
)
def test_other_last_layers_have_all_queries(arch, shape, view, monkeypatch):
    """With a window, a view from left to right, or two views."""
    views = [view or View.BIDIRECTIONAL, view or View.CAUSAL]
    groups = tuple(RowGroup(row, view, 2, 2 * PLACES) for row, view in enumerate(views))
    _, asked = outcome(encoder(arch, **shape), "varlen", monkeypatch, groups=groups)
    assert PLACES * len(PREDICTED) not in asked


def test_a_compiled_graph_serves_any_documents(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(attention_module, "_varlen", lambda: lambda q, k, v, bounds, *_, **__: q * bounds.sum())
    eager, compiled = encoder("modernbert"), encoder("modernbert")
    compiled.compile_graph(1)
    for lengths in (LENGTHS, [32, 32, 16, 16, 32]):
        bounds = {"cu_seqlens": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)}
        losses = []
        for model in (eager, compiled):
            model.backend = "varlen"
            losses.append(model(**batch() | bounds, seq_len=S).loss)
        torch.testing.assert_close(*losses)
