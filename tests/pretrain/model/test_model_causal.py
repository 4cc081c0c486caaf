"""The causal encoder: the shifted loss of transformers, and no state that depends on later tokens."""

import numpy as np
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("documents", [[[24], [9, 12, 3], [10, 14]], [[24], [24], [24]]])
@pytest.mark.parametrize("places", [None, torch.tensor([0, 11, 23, 24, 33, 45, 48, 57, 71])])
def test_a_causal_state_depends_on_nothing_that_follows_or_on_other_documents(documents, places, case):
    encoder, batch = native_encoder(hugging_face(case)), stream()
    lengths = [length for row in documents for length in row]
    positions = torch.cat([torch.arange(length) for length in lengths])
    cu_seqlens = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    slots = torch.arange(72) if places is None else places

    @torch.no_grad()
    def states(tokens: torch.Tensor) -> torch.Tensor:
        return encoder.hidden(tokens, positions, cu_seqlens, SEQ_LEN, places)

    before = states(batch["tokens"])
    for changed in (0, 5, 30, 33, 45, 57, 60):
        tokens = batch["tokens"].clone()
        tokens[changed] = 5 + (tokens[changed] - 4) % 96
        after = states(tokens)
        sees = (slots >= changed) & (document[slots] == document[changed])
        assert torch.equal(before[~sees], after[~sees])
        assert ((before[sees] - after[sees]).abs().amax(dim=1) > 1e-4).all()
