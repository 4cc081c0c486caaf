"""Each backend and version of attention on a GPU against fp64: documents, sources, windows, and sizes of heads."""

from collections.abc import Iterator

import pytest
import torch

from data_prep.common.errors import UserError
from pretrain.kernels import FlashAttention
from pretrain.kernels.flash_attention import use_version
from pretrain.model.attention import DocumentBounds, attention

SEQ_LEN = 256
LENGTHS = [256, 100, 120, 36, 200, 56, 17, 239]
SOURCES = [100, 1, 119, 36, 7, 56, 9, 200]  # slots of each document's source; two documents have nothing else
HEADS = 3


@pytest.fixture(params=["sdpa", "varlen 2", "varlen 3", "varlen 4"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend, with its version of flash attention in use."""
    name, _, version = request.param.partition(" ")
    newest = FlashAttention.installed(torch.cuda.get_device_capability()[0]).version
    if version and int(version) not in (2, newest):
        pytest.skip(f"FlashAttention {version} is not installed for this GPU")
    use_version(int(version or 2))
    yield name
    use_version(2)


def results(backend: str, dtype: torch.dtype, per_head: int, reach: int | None, view: str) -> list[torch.Tensor]:
    """Output and gradients of q, k, v, in fp64."""
    n = sum(LENGTHS)
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).int().cuda()
    ends = bounds[:-1] + torch.tensor(SOURCES).int().cuda() if view == "prefix" else None
    documents = DocumentBounds.of(bounds, n, SEQ_LEN, backend, view != "bidirectional", (reach,), ends)
    generator = torch.Generator().manual_seed(2)
    q, k, v, gradient = torch.randn(4, n, HEADS, per_head, generator=generator).cuda().to(torch.bfloat16).to(dtype)
    leaves = [leaf.detach().requires_grad_() for leaf in (q, k, v)]
    output = attention(*leaves, documents, reach)
    found = [output, *torch.autograd.grad(output, leaves, gradient)]
    return [tensor.detach().double() for tensor in found]


@pytest.mark.parametrize("view", ["bidirectional", "causal", "prefix"])
@pytest.mark.parametrize("reach", [None, 8, 64])
@pytest.mark.parametrize("per_head", [32, 64, 80, 128])
def test_output_and_gradients_agree_with_fp64(backend, per_head, reach, view):
    wanted = results("sdpa", torch.float64, per_head, reach, view)
    for name, one, exact in zip(
        ("output", "q", "k", "v"), results(backend, torch.bfloat16, per_head, reach, view), wanted, strict=True
    ):
        off = (one - exact).norm() / exact.norm()
        assert off < 0.01, f"{name}: {off:.4f}"


def test_a_version_for_other_gpus_is_refused_before_the_first_step():
    newest = FlashAttention.installed(torch.cuda.get_device_capability()[0])
    other = 3 if newest.version == 4 else 4
    with pytest.raises(UserError, match=f"train.flash_attention is {other}"):
        newest.require(other)
