"""The native encoder equals transformers' models in fp32: logits, loss and every gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoConfig,
    BertConfig,
    EsmConfig,
    EuroBertConfig,
    ModernBertConfig,
    PreTrainedModel,
    RobertaConfig,
)

from data_prep.common.errors import UserError
from pretrain.masking import IGNORED
from pretrain.model import Encoder, attention, native_encoder
from pretrain.model.attention import DocumentBounds
from pretrain.model.encoder import token_dropout
from pretrain.model.families import hugging_face_config, shape_of
from tests.support.encoders import CASES, LENGTHS, MASK, SEQ_LEN, check_gradients, hugging_face, shape, stream

SMALL = [case for case in CASES if not case.endswith(" base")]


# The published models, without their sizes.
ESM_2 = {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1, "hidden_act": "gelu", "layer_norm_eps": 1e-5}
ESM_2 |= {"emb_layer_norm_before": False, "position_embedding_type": "rotary", "token_dropout": True}
ESM_2 |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


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

    weights = torch.rand(len(batch["labels"]), generator=torch.Generator().manual_seed(2))
    predicted = expected[batch["masked_positions"]]
    losses = F.cross_entropy(predicted, batch["labels"], ignore_index=IGNORED, reduction="none")
    expected_loss = (losses * weights).sum()
    prediction = encoder(**batch, seq_len=SEQ_LEN, weights=weights)
    torch.testing.assert_close(prediction.loss, expected_loss)
    torch.testing.assert_close(prediction.cross_entropy, expected_loss.detach())
    assert prediction.predictions == 8
    assert prediction.correct == (predicted.argmax(-1) == batch["labels"]).sum()

    expected_loss.backward()
    prediction.loss.backward()
    check_gradients(encoder, model)
    assert encoder.decoder_weight.grad[101:].abs().max() == 0
    if encoder.shape.tied:
        assert encoder.decoder_bias.grad[101:].abs().max() == 0


def test_token_dropout_is_by_document():
    """ESM's factor is 0.88 over the share of a document that is not masked; a fully masked document gives no NaN."""
    tokens = torch.tensor([5, MASK, 6, 7, MASK, MASK, 5, 6])
    bounds = torch.tensor([0, 4, 6, 6, 8], dtype=torch.int32)
    found = token_dropout(tokens, bounds, MASK)
    part = 0.88 * 4 / 3
    torch.testing.assert_close(found, torch.tensor([part, 0.0, part, part, 0.0, 0.0, 0.88, 0.88]))
    encoder = Encoder(shape("esm"))
    encoder.initialize(0)
    masked = encoder.logits(states(encoder, torch.full((sum(LENGTHS),), MASK)))
    assert masked.isfinite().all()


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


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (BertConfig(hidden_act="relu"), "hidden_act 'relu'"),
        (BertConfig(tie_word_embeddings=False), "tie_word_embeddings False"),
        (RobertaConfig(type_vocab_size=2), "type_vocab_size 2"),
        (ModernBertConfig(mlp_bias=True), "mlp_bias True"),
        (EuroBertConfig(head_dim=16), "head_dim 16"),
        (EuroBertConfig(tie_word_embeddings=True), "tie_word_embeddings True"),
        (EuroBertConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), "rope_parameters"),
        (EsmConfig(vocab_size=33, mask_token_id=32), "position_embedding_type 'absolute'"),
        (ESM_2 | {"token_dropout": False}, "token_dropout False"),
        (ESM_2 | {"is_decoder": True}, "is_decoder True"),
        (ModernBertConfig(num_hidden_layers=3, layer_types=["sliding_attention"] * 3), "layer_types"),
    ],
)
def test_a_model_that_computes_something_else_is_refused(config: Any, wanted: str):
    with pytest.raises(UserError, match=wanted):
        shape_of(EsmConfig(**config) if isinstance(config, dict) else config)


def test_the_published_configurations_have_a_native_form():
    """As the first release of each family has them, with names of that time."""
    sizes = {"num_attention_heads": 18, "hidden_size": 1152, "num_key_value_heads": 6}
    euro = AutoConfig.for_model("eurobert", rope_theta=250000, rope_scaling=None, **sizes)
    assert (shape_of(euro).kv_heads, shape_of(euro).rope_theta) == (6, 250000)
    esm = shape_of(EsmConfig(**ESM_2))
    assert (esm.mask_id, esm.rope_theta, esm.norm_eps, esm.pad_id) == (32, 10_000, 1e-5, 1)


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
