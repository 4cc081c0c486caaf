"""Prefix attention: a source sees itself, a target sees the source and earlier targets, in each backend."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.model import attention as attention_module
from pretrain.model.attention import DocumentBounds, attention, source_ends
from tests.support.streams import plain_varlen

SEP, S = 3, 32
LENGTHS = [32, 20, 12, 7, 5, 1, 19]
SOURCES = [11, 1, 12, 6, 2, 1, 19]  # three documents are all source


def bounds() -> tuple[Tensor, Tensor]:
    """Document boundaries, and where the sources end."""
    cu_seqlens = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)
    return cu_seqlens, cu_seqlens[:-1] + torch.tensor(SOURCES, dtype=torch.int32)


def allowed(reach: int | None) -> Tensor:
    """Whether a query [N, 1] sees a key [1, N], from the definition."""
    sees = torch.zeros(sum(LENGTHS), sum(LENGTHS), dtype=torch.bool)
    start = 0
    for length, source in zip(LENGTHS, SOURCES, strict=True):
        for query, key in itertools.product(range(length), repeat=2):
            near = reach is None or abs(query - key) <= reach
            sees[start + query, start + key] = near and (key < source if query < source else key <= query)
        start += length
    return sees


@pytest.mark.parametrize("backend", ["sdpa", "varlen"])
@pytest.mark.parametrize("reach", [None, 3, 8])
def test_output_and_gradients_equal_those_under_an_explicit_mask(backend, reach, monkeypatch):
    monkeypatch.setattr(attention_module, "_varlen", lambda: plain_varlen)
    cu_seqlens, ends = bounds()
    n, generator = sum(LENGTHS), torch.Generator().manual_seed(1)
    q, k, v, weights = torch.randn(4, n, 2, 8, generator=generator, dtype=torch.float64).unbind()
    leaves = [leaf.detach().requires_grad_() for leaf in (q, k, v)]
    documents = DocumentBounds.of(cu_seqlens, n, S, backend, True, (reach,), ends)
    found = attention(*leaves, documents, reach)
    by_head = (leaf.transpose(0, 1) for leaf in leaves)
    wanted = F.scaled_dot_product_attention(*by_head, attn_mask=allowed(reach)).transpose(0, 1)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad((out * weights).sum(), leaves) for out in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_source_ends_after_the_first_separator_inside_its_document():
    tokens = torch.tensor([2, 7, SEP, 8, SEP, 2, 7, 7, SEP, 2, SEP, SEP, 2, 7, SEP, 8, SEP, 8, SEP, 0, 0])
    cu_seqlens = torch.tensor([0, 5, 9, 12, 19, 21], dtype=torch.int32)
    assert source_ends(tokens, cu_seqlens, SEP).tolist() == [3, 9, 11, 15, 21]
    assert source_ends(torch.full((4,), 7), torch.tensor([0, 2, 4], dtype=torch.int32), SEP).tolist() == [2, 4]


@pytest.mark.parametrize("backend", ["sdpa", "varlen"])
def test_a_compiled_graph_serves_any_documents(backend, monkeypatch):
    monkeypatch.setattr(attention_module, "_varlen", lambda: lambda q, *_, **__: q)

    @torch.compile(backend="eager", fullgraph=True)
    def ask(tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        ends = source_ends(tokens, cu_seqlens, SEP)
        documents = DocumentBounds.of(cu_seqlens, len(tokens), S, backend, True, (None,), ends)
        x = tokens.double()[:, None, None].expand(-1, 2, 4)
        return attention(x, x, x, documents)

    generator = torch.Generator().manual_seed(0)
    for lengths in ([32, 32], [20, 12, 32], [32, 1, 31]):
        tokens = torch.randint(0, 6, (64,), generator=generator)
        cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        torch._dynamo.mark_dynamic(cu_seqlens, 0)
        ends = source_ends(tokens, cu_seqlens, SEP)
        documents = DocumentBounds.of(cu_seqlens, 64, S, backend, True, (None,), ends)
        x = tokens.double()[:, None, None].expand(-1, 2, 4)
        torch.testing.assert_close(ask(tokens, cu_seqlens), attention(x, x, x, documents))
