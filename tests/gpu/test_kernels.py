"""Kernels of layers on a GPU: a stated error against float64, the same bits each time, and no synchronization.

tests/pretrain/kernels/test_kernels.py compares the same in Triton's interpreter.
"""

import os

import pytest
import torch

from pretrain.kernels import operations
from pretrain.masking import IGNORED
from tests.support import kernel_cases
from tests.support.kernel_cases import BOUNDS, FORMS, OPERATIONS

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 keeps kernels off the GPU"
)
both_precisions = pytest.mark.parametrize("dtype", BOUNDS, ids=str)
loss_options = pytest.mark.parametrize(("z_loss", "weighted"), [(0.0, False), (1e-3, True)])


OF_TORCH = ("gradient of words", "gradient of table")
"""Torch sums them in the kernels' backward pass too, and in bf16 where few rows are embedded."""


def check(found, bound):
    for name, (fused, plain) in found.items():
        most = max(bound, 1.5 * plain) if name in OF_TORCH else bound
        assert fused <= most, f"{name}: {fused:.1e}, where plain torch has {plain:.1e}"


@both_precisions
@pytest.mark.parametrize(("n", "hidden"), [(37, 32), (101, 72), (37, 768), (2500, 1024), (9, 2048)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_and_gradients(operation, n, hidden, dtype):
    check(kernel_cases.errors(operation, n, hidden, dtype, "cuda"), BOUNDS[dtype])


@both_precisions
@pytest.mark.parametrize("n", [5, 4099, 6144])
def test_steps_of_adamw(n, dtype):
    check(kernel_cases.adamw_errors(n, dtype, "cuda"), BOUNDS[torch.float32])


@both_precisions
@loss_options
@pytest.mark.parametrize(("n", "n_ids"), [(300, 101), (500, 30_522), (200, 50_368), (40, 256_000)])
def test_loss_over_the_vocabulary(n, n_ids, weighted, z_loss, dtype):
    found, same_choices = kernel_cases.loss_errors(n, n_ids, z_loss, dtype, "cuda", weighted)
    check(found, BOUNDS[dtype])
    assert same_choices


@pytest.mark.parametrize("per_head", [32, 64, 128])
@pytest.mark.parametrize(("lengths", "reach"), [(range(1, 301), 64), ([1000, 24, 0, 9], 64), ([8192], 64), ([300], 8)])
def test_attention_within_a_window(lengths, reach, per_head):
    found = kernel_cases.window_errors(list(lengths), reach, torch.bfloat16, "cuda", per_head)
    check(found, BOUNDS[torch.bfloat16])


@both_precisions
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_whole_encoder(form, checkpointing, dtype):
    check(kernel_cases.encoder_errors(form, dtype, "cuda", checkpointing), kernel_cases.ENCODER_BOUNDS[dtype])


@pytest.mark.parametrize("operation", ["gelu", "geglu"])
def test_what_was_overwritten_is_not_used_again(operation):
    assert "modified by an inplace operation" in kernel_cases.second_backward(operation, "cuda")


@pytest.fixture
def results():
    """A call that gives what all kernels make of the same numbers, all gradients too, and has the host read nothing."""
    torch.manual_seed(0)
    shapes = ((3000, 768), (768,), (768,), (3000, 2304), (3000, 2304), (300, 30_528), (3000, 768), (3000, 1152))
    angles = torch.rand(3000, 1, 32) * 6
    numbers = [*(torch.randn(shape) for shape in shapes), angles.cos(), angles.sin()]
    *weights, logits, of_x, of_value, cos, sin = (tensor.to("cuda", torch.bfloat16) for tensor in numbers)
    labels = torch.randint(0, 30_522, (300,))
    labels[::7] = IGNORED
    labels = labels.cuda()
    rows = (torch.arange(3000) * 7 % 900).cuda()  # several times each
    weights_of_rows = torch.rand(300).cuda()
    using = operations(True)

    def call() -> list[torch.Tensor]:
        x, weight, bias, halves, qkv = leaves = [tensor.clone().requires_grad_() for tensor in weights]
        made = [
            *using.embed_norm(rows, x, rows, x, weight, weight, bias, 1e-5),
            *using.add_norm(x, x * 2, weight, bias, 1e-5, weight),
            using.linear_gelu(x, halves[:768, :768] * 1, bias),
            *using.rotate_heads(qkv * 1, (12,) * 3, 2, (cos, sin)),
            using.geglu(halves * 1),
        ]
        outer = [*(of_x.view_as(part) for part in made[:-1]), of_value]
        gradients = torch.autograd.grad(made, leaves, outer)
        of_logits = logits.clone()
        sums = using.cross_entropy(of_logits, labels, weights_of_rows, 1e-4, True)
        return [*made, *gradients, of_logits, *sums]

    return call


def test_the_same_bits_each_time(results):
    first = results()
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(first, results(), strict=True))


def test_the_host_waits_for_nothing(results):
    results()  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results()
    finally:
        torch.cuda.set_sync_debug_mode("default")
