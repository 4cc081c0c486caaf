"""The loss over the vocabulary, against torch's cross-entropy in float64."""

import pytest
import torch
import torch.nn.functional as F

from pretrain.kernels import PLAIN
from pretrain.masking import IGNORED
from pretrain.model.head import VocabularyLoss

K, D, V, N_IDS = 37, 12, 64, 50


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((K, D), (V, D), (V,)))
    weight[N_IDS:], bias[N_IDS:] = 0, -1e4
    labels = torch.randint(0, N_IDS, (K,), generator=generator)
    labels[::5] = IGNORED
    return *(tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias)), labels


def reference(x, weight, bias, labels, z_loss: float, of_rows) -> tuple[torch.Tensor, ...]:
    logits = F.linear(x, weight, bias)[:, :N_IDS]
    used, how = labels != IGNORED, {"ignore_index": IGNORED, "reduction": "none"}
    plain = F.cross_entropy(logits, labels, **how)
    loss = plain + z_loss * logits.logsumexp(dim=1).square() * used
    return (loss * of_rows).sum(), (plain * of_rows).sum(), ((logits.argmax(1) == labels) & used).sum()


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("small", "weighted"), [(False, False), (True, False), (True, True)])
def test_values_and_gradients(z_loss, dtype, tolerance, small, weighted, monkeypatch):
    if small:
        monkeypatch.setattr("pretrain.kernels.plain._BLOCK_BYTES", 3 * V * 4)
    *weights, labels = inputs(dtype)
    of_rows = torch.rand(K, generator=torch.Generator().manual_seed(1)) if weighted else None
    most = (10 if small else K) * V * dtype.itemsize  # a few rows at a time, and blocks of those
    loss, plain, correct = VocabularyLoss.apply(*weights, labels, z_loss, PLAIN, of_rows, (), most)
    (loss * 0.25).backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in weights]
    wanted, wanted_plain, wanted_correct = reference(*exact, labels, z_loss, of_rows if weighted else 1)
    (wanted * 0.25).backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=tolerance, atol=0)
    torch.testing.assert_close(plain.double(), wanted_plain, rtol=tolerance, atol=0)
    assert abs(correct - wanted_correct) <= (0 if dtype == torch.float32 else 1)
    for ours, theirs in zip(weights, exact, strict=True):
        assert ours.grad.dtype == dtype
        atol = tolerance * theirs.grad.abs().max()
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=tolerance, atol=atol)


def test_without_predictions_and_without_gradients():
    *weights, labels = inputs(torch.float32)
    loss, plain, correct = VocabularyLoss.apply(*weights, torch.full_like(labels, IGNORED), 0.1)
    loss.backward()
    assert (loss, plain, correct) == (0, 0, 0)
    assert all(tensor.grad.abs().max() == 0 for tensor in weights)
    with torch.no_grad():
        again = VocabularyLoss.apply(*weights, labels)
    assert again[0] == VocabularyLoss.apply(*weights, labels)[0]
