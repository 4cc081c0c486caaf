"""Held-out loss and sentence likelihoods, compared with plain loops over transformers' models."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from data_prep.format import Dataset
from evaluation.likelihood.held_out_loss import HeldOut, Masks, measure, unmasked
from evaluation.likelihood.predictors import EncoderLogits, PaddedLogits, Stream, open_model
from evaluation.likelihood.sentence_scores import sentence_scores
from tests.support.evaluated import save_model

MASKED = dict.fromkeys(["bert", "esm", "distilbert"], "wordpiece")
MASKED |= dict.fromkeys(["roberta", "modernbert", "eurobert"], "bpe")
CAUSAL = {"causal bert": "wordpiece", "causal modernbert": "bpe", "gpt2": "bpe"}
NATIVE = ("bert", "roberta", "modernbert", "eurobert", "esm", "causal bert", "causal modernbert")
TEXTS = [
    "The captain saw the red ship.",
    "the captain saw ship red the.",
    "unfollowable sailorships",
    "My sister, the doctor, forgot Painterly things!",
    "a",
    "The captain saw the red ship.",
]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folders(corpus, tmp_path_factory) -> dict[str, Path]:
    into = tmp_path_factory.mktemp("models")
    return {name: save_model(name, corpus[kind], into / name) for name, kind in (MASKED | CAUSAL).items()}


@functools.cache
def by_transformers(folder: Path, auto: Any) -> tuple[Any, Any]:
    return auto.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@functools.cache
def one_masked_copy_at_a_time(folder: Path, text: str) -> float:
    """The score of Salazar et al."""
    model, tokenizer = by_transformers(folder, AutoModelForMaskedLM)
    encoded = tokenizer(text)
    ids, total = encoded["input_ids"], 0.0
    for place, word in enumerate(encoded.word_ids()):
        if word is None:
            continue
        copy = [tokenizer.mask_token_id if at == place else id for at, id in enumerate(ids)]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([copy])).logits[0, place].double()
        total += float(logits.log_softmax(0)[ids[place]])
    return total


def left_to_right(folder: Path, text: str) -> float:
    model, tokenizer = by_transformers(folder, AutoModelForCausalLM)
    ids = [tokenizer.cls_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    total = 0.0
    for place in range(1, len(ids)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1].double()
        total += float(logits.log_softmax(0)[ids[place]])
    return total


@pytest.mark.parametrize("name", MASKED)
def test_pseudo_likelihoods_are_those_of_a_plain_loop(name, folders):
    model = open_model(folders[name])
    assert isinstance(model.logits, EncoderLogits if name in NATIVE else PaddedLogits)
    expected = [one_masked_copy_at_a_time(folders[name], text) for text in TEXTS]
    for pieces in ({}, {"slots": 40}):  # in one piece, and in several
        if pieces:
            model.logits.max_bytes = 800 if name in NATIVE else 800_000
        found = sentence_scores(model, TEXTS, **pieces)
        assert np.abs(found - expected).max() < TOLERANCE
        assert found[0] == found[-1]


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_models_give_the_likelihood_after_cls(name, folders):
    model = open_model(folders[name])
    assert model.causal
    assert isinstance(model.logits, EncoderLogits if name in NATIVE else PaddedLogits)
    found = sentence_scores(model, TEXTS)
    assert np.abs(found - [left_to_right(folders[name], text) for text in TEXTS]).max() < TOLERANCE


@pytest.mark.parametrize("name", ["distilbert", "gpt2"])
def test_padded_models_get_batches_that_fit_of_the_documents_that_are_asked_about(name, folders, corpus, monkeypatch):
    held_out = HeldOut(Dataset(corpus[(MASKED | CAUSAL)[name]] / "data" / "valid"), Masks(1000, 32, 0.05))
    model = open_model(folders[name])
    whole, shapes, asked = measure(held_out, model), [], 0
    forward = model.logits.model.forward

    def noted(input_ids, attention_mask):
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, attention_mask=attention_mask)

    monkeypatch.setattr(model.logits.model, "forward", noted)
    model.logits.max_bytes = 4 * model.vocab_size * 100
    found = measure(held_out, model)
    assert np.abs(found.loss - whole.loss).max() < TOLERANCE
    assert all(rows == 1 or rows * length <= 100 for rows, length in shapes)
    assert max(rows for rows, _ in shapes) > 2
    for batch in held_out:
        stream = Stream.of_batch(batch)
        asked += len(set(np.searchsorted(stream.cu_seqlens, stream.places, side="right")))
    assert sum(rows for rows, _ in shapes) == asked


@pytest.mark.parametrize("name", MASKED | CAUSAL)
def test_held_out_loss_is_that_of_each_document_by_itself(name, folders, corpus):
    kind = (MASKED | CAUSAL)[name]
    held_out = HeldOut(Dataset(corpus[kind] / "data" / "valid"), Masks(1000, 32, 0.2))
    model = open_model(folders[name])
    measured = measure(held_out, model)
    auto = AutoModelForCausalLM if model.causal else AutoModelForMaskedLM
    reference, tokenizer = by_transformers(folders[name], auto)
    losses, right = [], []
    for batch in held_out:
        stream = unmasked(Stream.of_batch(batch)) if model.causal else Stream.of_batch(batch)
        bounds = stream.cu_seqlens.tolist()
        for start, end in itertools.pairwise(bounds):
            here = (stream.places >= start) & (stream.places < end)
            if not here.any():
                continue
            places, labels = torch.from_numpy(stream.places[here] - start), torch.from_numpy(stream.labels[here])
            document = torch.from_numpy(stream.tokens[start:end])
            if model.causal:
                assert torch.equal(document[places + 1], labels)
            else:
                assert (document[places] == tokenizer.mask_token_id).all()
            with torch.no_grad():
                logits = reference(input_ids=document[None]).logits[0, places].double()
            losses += (-logits.log_softmax(1).gather(1, labels[:, None])[:, 0]).tolist()
            right += (logits.argmax(1) == labels).tolist()
    assert len(losses) > 100
    assert np.abs(measured.loss - losses).max() < TOLERANCE
    assert (measured.right == right).all()
