"""The kernels of layers in Triton's interpreter, on a CPU: within a stated error of float64, as plain torch is.

tests/gpu/test_kernels.py compares the same on a GPU.
"""

import pytest
import torch

from data_prep.common.errors import UserError
from pretrain.kernels import PLAIN, operations
from tests.support.kernel_cases import (
    BOUNDS,
    ENCODER_BOUNDS,
    FORMS,
    OPERATIONS,
    adamw_errors,
    encoder_errors,
    errors,
    gradient_additions,
    loss_errors,
    second_backward,
    window_errors,
)
from tests.support.triton_process import needs_triton

pytestmark = needs_triton
both_precisions = pytest.mark.parametrize("dtype", BOUNDS, ids=str)


def check(found, bound):
    for name, (fused, plain) in found.items():
        assert fused <= bound, f"{name}: {fused:.1e}, where plain torch has {plain:.1e}"


@both_precisions
@pytest.mark.parametrize("hidden", [72, 1024])  # a part of a block, and whole blocks
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_and_gradients(interpreter, operation, hidden, dtype):
    check(interpreter(errors, operation, 37, hidden, dtype, "cpu"), BOUNDS[dtype])


@pytest.mark.parametrize("operation", ["sum and norm with bias", "bias and gelu"])
@pytest.mark.parametrize("programs", [1, 3])
def test_gradients_of_weights_are_summed_over_all_rows(interpreter, operation, programs):
    check(interpreter(errors, operation, 101, 1024, torch.float32, "cpu", programs), BOUNDS[torch.float32])


@both_precisions
@pytest.mark.parametrize("n", [5, 4099, 6144])
def test_steps_of_adamw(interpreter, n, dtype):
    check(interpreter(adamw_errors, n, dtype, "cpu"), BOUNDS[torch.float32])


@both_precisions
@pytest.mark.parametrize(
    ("rows", "vocabulary", "z_loss", "weighted"),
    [(130, 101, 0.0, False), (130, 101, 1e-3, True), (8, 50_368, 1e-4, False)],
)
def test_loss_over_the_vocabulary(interpreter, rows, vocabulary, z_loss, weighted, dtype):
    found, same_choices = interpreter(loss_errors, rows, vocabulary, z_loss, dtype, "cpu", weighted)
    check(found, BOUNDS[dtype])
    assert same_choices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)  # the interpreter has no products in bf16
@pytest.mark.parametrize(
    ("lengths", "reach", "heads"),
    [
        ([1, 2, 63, 64, 65, 0, 129, 200], 64, 2),
        ([300], 8, 3),
        ([130, 70], 128, 1),
        ([10] * 9, 20, 1),
        ([*range(1, 65, 7), *range(66, 301, 47)], 64, 1),  # parts of a tile, and each number of tiles
    ],
)
def test_attention_within_a_window(interpreter, lengths, reach, heads, dtype):
    bound = {torch.float16: 2e-3}.get(dtype, 2e-6)
    check(interpreter(window_errors, lengths, reach, dtype, "cpu", 32, heads), bound)


@pytest.mark.slow
def test_attention_within_a_window_of_documents_of_any_length(interpreter):
    check(interpreter(window_errors, list(range(1, 301)), 64, torch.float32, "cpu", 32, 1), BOUNDS[torch.float32])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_whole_encoder(interpreter, form, checkpointing):
    check(interpreter(encoder_errors, form, torch.float32, "cpu", checkpointing), ENCODER_BOUNDS[torch.float32])


# In plain torch: of 3 layers of BERT, the states of each and those between attention and MLP, of which the last layer's
# are [K, D]. Of ModernBERT, the embeddings, and the residual stream at each norm but the last layer's second. Of BERT
# also the rows of five of them: for four biases of linear layers, and the type embedding.
@pytest.mark.parametrize(("form", "with_kernels", "in_plain"), [("bert", 0, 10), ("modernbert", 0, 5), ("esm", 2, 9)])
def test_the_norms_kernel_adds_all_gradients_of_states(interpreter, form, with_kernels, in_plain):
    assert interpreter(gradient_additions, form, "cpu") == (with_kernels, in_plain)


@pytest.mark.parametrize("operation", ["gelu", "geglu"])
def test_what_was_overwritten_is_not_used_again(interpreter, operation):
    assert "modified by an inplace operation" in interpreter(second_backward, operation, "cpu")


def test_gelu_is_exact_and_not_its_tanh_form():
    """The two forms differ by 5e-4 at most, and where small initial weights keep the values, by much less."""
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)[:, None]
    exact = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(PLAIN.geglu(torch.cat([x, torch.full_like(x, 3.0)], 1)), 3 * exact)
    torch.testing.assert_close(PLAIN.linear_gelu(x, torch.ones(1, 1, dtype=x.dtype), None), exact)


def test_they_are_refused_without_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert operations(False) is PLAIN
    with pytest.raises(UserError, match=r"^train\.fused_kernels needs a GPU; set it to false$"):
        operations(True)
