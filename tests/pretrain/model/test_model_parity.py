"""The native encoder equals transformers' models in fp32: logits, loss and every gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import BertConfig, ModernBertConfig, PreTrainedModel, RobertaConfig

from data_prep.errors import UserError
from pretrain.masking import IGNORED
from pretrain.model import Encoder, attention, native_encoder
from pretrain.model.attention import DocumentBounds
from pretrain.model.families import hugging_face_config, hugging_face_model, shape_of, to_hugging_face
from tests.support.encoders import (
    CASES,
    LENGTHS,
    SEQ_LEN,
    hugging_face,
    shape,
    stream,
)

SMALL = [case for case in CASES if not case.endswith(" base")]


def states(encoder: Encoder, tokens: torch.Tensor) -> torch.Tensor:
    batch = stream()
    return encoder.hidden(tokens, batch["positions"], batch["cu_seqlens"], SEQ_LEN)


def reference_logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Each document by itself through transformers: [N, vocabulary]."""
    return torch.cat([model(input_ids=part[None]).logits[0] for part in tokens.split(LENGTHS)])


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case.endswith(" base") else []) for case in CASES]
)
def test_logits_loss_and_gradients_equal_transformers(case):
    model = hugging_face(case)
    encoder = native_encoder(model)
    batch = stream()

    expected = reference_logits(model, batch["tokens"])
    logits = encoder.logits(states(encoder, batch["tokens"]))
    assert logits.shape[1] == 128
    assert logits[:, 101:].max() < -9000
    torch.testing.assert_close(logits[:, :101], expected, rtol=1e-4, atol=5e-5)

    expected_loss = torch.nn.functional.cross_entropy(
        expected[batch["masked_positions"]], batch["labels"], ignore_index=IGNORED, reduction="sum"
    )
    prediction = encoder(**batch, seq_len=SEQ_LEN)
    torch.testing.assert_close(prediction.loss, expected_loss)
    torch.testing.assert_close(prediction.cross_entropy, expected_loss.detach())
    assert prediction.predictions == 8
    chosen = expected[batch["masked_positions"]].argmax(-1)
    assert prediction.correct == (chosen == batch["labels"]).sum()

    expected_loss.backward()
    prediction.loss.backward()
    gradients = to_hugging_face({name: p.grad for name, p in encoder.named_parameters()}, encoder.shape)
    for name, parameter in model.named_parameters():
        if "pooler" in name:
            continue
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=2e-5 * wanted.abs().max().item() + 1e-7)
    assert encoder.word_embedding.grad[101:].abs().max() == 0
    assert encoder.decoder_bias.grad[101:].abs().max() == 0


@pytest.mark.parametrize("case", SMALL)
def test_documents_one_by_one_are_as_in_masked_rows(case, monkeypatch):
    encoder, batch, found = native_encoder(hugging_face(case)), stream(), []
    for share in (0.0, 1.0):
        monkeypatch.setattr(attention, "WORTH_CUTTING", share)
        encoder.zero_grad()
        prediction = encoder(**batch, seq_len=SEQ_LEN)
        prediction.loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
        found.append({"loss": prediction.loss.detach(), **gradients})
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_rows_of_many_documents_are_cut_on_a_cpu():
    few, many = torch.tensor([0, 24, 48], dtype=torch.int32), torch.tensor([0, 9, 24, 40, 48], dtype=torch.int32)
    assert DocumentBounds.of(few, 48, 24, "sdpa").lengths is None
    assert DocumentBounds.of(many, 48, 24, "sdpa").lengths == [9, 15, 16, 8]


@pytest.mark.parametrize("case", SMALL)
def test_round_trip_is_lossless(case):
    model = hugging_face(case)
    encoder = native_encoder(model)
    assert encoder.shape == shape(case)
    again = hugging_face_model(encoder.state_dict(), encoder.shape)
    assert type(again) is type(model)
    for (name, before), (_, after) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(before, after), name


@pytest.mark.parametrize("cut", [0.0, 1.0])
@pytest.mark.parametrize("case", SMALL)
def test_documents_of_a_row_do_not_see_each_other(case, cut, monkeypatch):
    monkeypatch.setattr(attention, "WORTH_CUTTING", cut)
    encoder, tokens = native_encoder(hugging_face(case)), stream()["tokens"]
    changed = tokens.clone()
    changed[SEQ_LEN + 9 : SEQ_LEN + 21] = torch.randint(5, 101, (12,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before, after = states(encoder, tokens), states(encoder, changed)
    same = torch.ones(len(before), dtype=torch.bool)
    same[SEQ_LEN + 9 : SEQ_LEN + 21] = False
    assert torch.equal(before[same], after[same])
    assert not torch.allclose(before[~same], after[~same])


@pytest.mark.parametrize("case", ["causal bert", "causal modernbert"])
def test_a_causal_token_does_not_see_those_after_it(case):
    encoder, tokens = native_encoder(hugging_face(case)), stream()["tokens"]
    changed = tokens.clone()
    changed[SEQ_LEN + 15] = 7 if tokens[SEQ_LEN + 15] != 7 else 8
    with torch.no_grad():
        before, after = states(encoder, tokens), states(encoder, changed)
    differs = (before != after).any(dim=1)
    assert differs.nonzero().flatten().tolist() == list(range(SEQ_LEN + 15, SEQ_LEN + 21))


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (BertConfig(hidden_act="relu"), "hidden_act 'relu'"),
        (BertConfig(tie_word_embeddings=False), "tie_word_embeddings False"),
        (RobertaConfig(type_vocab_size=2), "type_vocab_size 2"),
        (ModernBertConfig(mlp_bias=True), "mlp_bias True"),
        (ModernBertConfig(num_hidden_layers=3, layer_types=["sliding_attention"] * 3), "layer_types"),
    ],
)
def test_a_model_that_computes_something_else_is_refused(config: Any, wanted: str):
    with pytest.raises(UserError, match=wanted):
        shape_of(config)


@pytest.mark.parametrize("arch", ["bert", "roberta", "modernbert"])
def test_dropout_is_for_training_and_follows_the_seed(arch):
    """Evaluation drops nothing. In training, the dropped values at each place follow torch's generator."""
    wanted, batch = shape(arch), stream()
    still, leaves_out = Encoder(wanted), Encoder(replace(wanted, dropout=0.5))
    still.initialize(0)
    leaves_out.initialize(0)
    tokens = batch["tokens"]

    @torch.no_grad()
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return states(leaves_out, tokens)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.allclose(drawn(1), drawn(2))
    assert torch.equal(states(leaves_out.eval(), tokens), states(still, tokens))
    assert shape_of(hugging_face_config(leaves_out.shape)) == wanted
