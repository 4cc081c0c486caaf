"""The causal encoder: the shifted loss of transformers, and no state that depends on later tokens."""

import pytest
import torch

from pretrain.masking import IGNORED, Vocabulary
from pretrain.model import native_encoder
from pretrain.model.families import to_hugging_face
from pretrain.objectives.causal import CausalTokens
from tests.support import masks
from tests.support.encoders import LENGTHS, SEQ_LEN, hugging_face, stream

VOCABULARY = Vocabulary(size=101, pad=1, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
CASES = ["causal bert", "causal modernbert"]


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_those_of_transformers_with_labels(case):
    """Its loss shifts the labels itself."""
    model = hugging_face(case)
    encoder, batch = native_encoder(model), stream()
    bounds = batch["cu_seqlens"].long()
    batch["tokens"][bounds[:-1]], batch["tokens"][bounds[1:] - 1], batch["tokens"][7] = 2, 3, 0
    found = CausalTokens(VOCABULARY)(masks.rows_of(batch["tokens"].view(-1, SEQ_LEN).numpy()), 1.0)
    batch["masked_positions"], batch["labels"] = torch.from_numpy(found.positions), torch.from_numpy(found.labels)

    wanted, predictions = torch.zeros(()), 0
    for ids in batch["tokens"].split(LENGTHS):
        labels = torch.where(ids < 5, IGNORED, ids)
        n = int((labels != IGNORED).sum())
        wanted, predictions = wanted + model(input_ids=ids[None], labels=labels[None]).loss * n, predictions + n
    prediction = encoder(**batch, seq_len=SEQ_LEN)
    assert prediction.predictions == predictions == 3 * SEQ_LEN - 2 * len(LENGTHS) - 1
    torch.testing.assert_close(prediction.loss, wanted)
    wanted.backward()
    prediction.loss.backward()
    gradients = to_hugging_face({name: p.grad for name, p in encoder.named_parameters()}, encoder.shape)
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradients[name], expected, rtol=1e-3, atol=2e-5 * expected.abs().max().item() + 1e-7)
