"""The native encoder equals transformers' BertForMaskedLM and BertLMHeadModel in fp32: logits, loss, every gradient."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

from pretrain.masking.causal import CausalTokens
from pretrain.masking.rows import IGNORED
from pretrain.masking.vocabulary import Vocabulary
from pretrain.model.encoder import Encoder
from pretrain.model.families import BertModel, bert_model, encoder_from_bert, to_bert
from tests.support import masks

SEQ_LEN = 24
DOCUMENTS = [[24], [9, 12, 3], [10, 14]]  # lengths, row by row; each row is full
SHAPES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}


def hugging_face_model(shape: str, causal: bool = False) -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=101,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        is_decoder=causal,
        **SHAPES[shape],
    )
    model = (BertLMHeadModel if causal else BertForMaskedLM)(config).eval()
    with torch.no_grad():  # biases and norms away from 0 and 1, so that a swapped one shows
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def stream() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = [length for row in DOCUMENTS for length in row]
    n = sum(lengths)
    masked = torch.tensor([1, 5, 23, 25, 34, 46, 50, 71, 0])
    labels = torch.randint(5, 101, masked.shape, generator=generator)
    labels[-1] = IGNORED
    return {
        "tokens": torch.randint(5, 101, (n,), generator=generator),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": torch.tensor([0, *np.cumsum(lengths), n, n], dtype=torch.int32),
        "masked_positions": masked,
        "labels": labels,
    }


def causal_stream() -> dict[str, torch.Tensor]:
    """The same documents, with specials, and predictions as the causal objective has them."""
    batch = stream()
    vocabulary = Vocabulary(size=101, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
    bounds = batch["cu_seqlens"][:7].long()
    batch["tokens"][bounds[:-1]], batch["tokens"][bounds[1:] - 1], batch["tokens"][7] = 2, 3, 1
    rows = masks.rows_of(batch["tokens"].view(-1, SEQ_LEN).numpy())
    found = CausalTokens(vocabulary)(rows, 1.0)
    batch["masked_positions"], batch["labels"] = torch.from_numpy(found.positions), torch.from_numpy(found.labels)
    return batch


def reference_logits(model: BertModel, tokens: torch.Tensor) -> torch.Tensor:
    """Each document by itself through transformers: [N, vocabulary]."""
    lengths = [length for row in DOCUMENTS for length in row]
    return torch.cat([model(input_ids=part[None]).logits[0] for part in tokens.split(lengths)])


@pytest.mark.parametrize("shape", list(SHAPES))
def test_logits_loss_and_gradients_equal_transformers(shape):
    model = hugging_face_model(shape)
    encoder = encoder_from_bert(model)
    batch = stream()
    n_documents = sum(map(len, DOCUMENTS))

    expected = reference_logits(model, batch["tokens"])
    hidden = encoder.hidden(batch["tokens"], batch["positions"], batch["cu_seqlens"], SEQ_LEN, n_documents)
    logits = encoder.logits(hidden)
    assert logits.shape[1] == 128
    assert logits[:, 101:].max() < -9000
    torch.testing.assert_close(logits[:, :101], expected, rtol=1e-4, atol=2e-5)

    expected_loss = torch.nn.functional.cross_entropy(
        expected[batch["masked_positions"]], batch["labels"], ignore_index=IGNORED, reduction="sum"
    )
    prediction = encoder(**batch, seq_len=SEQ_LEN, n_documents=n_documents)
    torch.testing.assert_close(prediction.loss, expected_loss)
    assert prediction.predictions == 8
    chosen = expected[batch["masked_positions"]].argmax(-1)
    assert prediction.correct == (chosen == batch["labels"]).sum()

    assert_same_gradients(model, expected_loss, encoder, prediction.loss)


def assert_same_gradients(model: BertModel, wanted: torch.Tensor, encoder: Encoder, found: torch.Tensor) -> None:
    wanted.backward()
    found.backward()
    gradients = to_bert({name: p.grad for name, p in encoder.named_parameters()}, encoder.shape)
    for name, parameter in model.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=2e-5 * wanted.abs().max().item() + 1e-7)
    assert encoder.word_embedding.grad[101:].abs().max() == 0
    assert encoder.decoder_bias.grad[101:].abs().max() == 0


def test_causal_logits_loss_and_gradients_equal_transformers():
    """Its loss shifts the labels itself."""
    model = hugging_face_model("tiny", causal=True)
    encoder = encoder_from_bert(model)
    batch = causal_stream()
    arrays = batch["tokens"], batch["positions"], batch["cu_seqlens"], SEQ_LEN, 6
    logits = encoder.logits(encoder.hidden(*arrays))[:, :101]
    torch.testing.assert_close(logits, reference_logits(model, batch["tokens"]), rtol=1e-4, atol=2e-5)

    wanted = torch.zeros(())
    predictions = 0
    for ids in batch["tokens"].split([length for row in DOCUMENTS for length in row]):
        labels = torch.where(ids < 5, IGNORED, ids)
        n = int((labels != IGNORED).sum())
        wanted, predictions = wanted + model(input_ids=ids[None], labels=labels[None]).loss * n, predictions + n
    prediction = encoder(**batch, seq_len=SEQ_LEN, n_documents=6)
    assert prediction.predictions == predictions == 3 * SEQ_LEN - 2 * 6 - 1
    torch.testing.assert_close(prediction.loss, wanted)
    assert_same_gradients(model, wanted, encoder, prediction.loss)


@pytest.mark.parametrize("documents", [[[24], [9, 12, 3], [10, 14]], [[24], [24], [24]]])
@pytest.mark.parametrize("places", [None, torch.tensor([0, 11, 23, 24, 33, 45, 48, 57, 71])])
def test_a_causal_state_depends_on_nothing_that_follows_or_on_other_documents(documents, places):
    encoder = encoder_from_bert(hugging_face_model("tiny", causal=True))
    batch = stream()
    lengths = [length for row in documents for length in row]
    positions = torch.cat([torch.arange(length) for length in lengths])
    cu_seqlens = torch.tensor([0, *np.cumsum(lengths), 72], dtype=torch.int32)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    slots = torch.arange(72) if places is None else places

    @torch.no_grad()
    def states(tokens: torch.Tensor) -> torch.Tensor:
        return encoder.hidden(tokens, positions, cu_seqlens, SEQ_LEN, len(lengths), places)

    before = states(batch["tokens"])
    for changed in (0, 5, 30, 33, 45, 57, 60):
        tokens = batch["tokens"].clone()
        tokens[changed] = 5 + (tokens[changed] - 4) % 96
        after = states(tokens)
        sees = (slots >= changed) & (document[slots] == document[changed])
        assert torch.equal(before[~sees], after[~sees])
        assert ((before[sees] - after[sees]).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.parametrize("causal", [False, True])
def test_round_trip_is_lossless(causal):
    model = hugging_face_model("tiny", causal)
    again = bert_model(encoder_from_bert(model).state_dict(), encoder_from_bert(model).shape)
    assert type(again) is type(model)
    assert again.config.is_decoder is causal
    for (name, before), (_, after) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(before, after), name


def test_documents_of_a_row_do_not_see_each_other():
    encoder = encoder_from_bert(hugging_face_model("tiny"))
    batch = stream()

    def states(tokens: torch.Tensor) -> torch.Tensor:
        return encoder.hidden(tokens, batch["positions"], batch["cu_seqlens"], SEQ_LEN, 6)

    before = states(batch["tokens"])
    changed = batch["tokens"].clone()
    changed[SEQ_LEN + 9 : SEQ_LEN + 21] = torch.randint(5, 101, (12,), generator=torch.Generator().manual_seed(2))
    after = states(changed)
    same = torch.ones(len(before), dtype=torch.bool)
    same[SEQ_LEN + 9 : SEQ_LEN + 21] = False
    assert torch.equal(before[same], after[same])
    assert not torch.allclose(before[~same], after[~same])
