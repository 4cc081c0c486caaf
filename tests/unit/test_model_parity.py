"""The native encoder equals transformers' BertForMaskedLM in fp32: logits, loss and every gradient."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from pretrain.masking.rows import IGNORED
from pretrain.model.families import bert_model, encoder_from_bert, to_bert

SEQ_LEN = 24
DOCUMENTS = [[24], [9, 12, 3], [10, 14]]  # lengths, row by row; each row is full
SHAPES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}


def hugging_face_model(shape: str) -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=101,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SHAPES[shape],
    )
    model = BertForMaskedLM(config).eval()
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


def reference_logits(model: BertForMaskedLM, tokens: torch.Tensor) -> torch.Tensor:
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

    expected_loss.backward()
    prediction.loss.backward()
    gradients = to_bert({name: p.grad for name, p in encoder.named_parameters()}, encoder.shape)
    for name, parameter in model.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=2e-5 * wanted.abs().max().item() + 1e-7)
    assert encoder.word_embedding.grad[101:].abs().max() == 0
    assert encoder.decoder_bias.grad[101:].abs().max() == 0


def test_round_trip_is_lossless():
    model = hugging_face_model("tiny")
    again = bert_model(encoder_from_bert(model).state_dict(), encoder_from_bert(model).shape)
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
