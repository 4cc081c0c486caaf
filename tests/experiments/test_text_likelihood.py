"""Likelihood of all tokens: the bound of masked models is MDLM's integral, and causal models give the exact sum."""

import functools
import itertools

import numpy as np
import pytest
import torch

from data_prep.format import Dataset
from evaluation.likelihood.held_out_loss import HeldOut, Masks
from evaluation.likelihood.predictors import open_model
from experiments import text_likelihood
from experiments.text_likelihood import RowLikelihoods, row_likelihoods
from pretrain.export import load_language_model
from tests.support.tiny_models import tiny_model
from tests.support.wordpiece_set import source, wordpiece_set

UNKNOWN, CLS, SEP, MASK = 1, 2, 3, 4
DOCUMENTS = [[5, 6, 7, 8], [6, UNKNOWN, 9], [8, 9, 5, 6, 7]]  # [UNK] is context, and not predicted
ROW = 16  # two rows, one of two documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("likelihood")
    wordpiece_set(folder / "data", [DOCUMENTS], [source("text", "", 0, 1, len(DOCUMENTS), 12)])
    tokenizer = folder / "data" / "tokenizer" / "tokenizer.json"
    tiny_model(folder / "mlm", tokenizer)
    tiny_model(folder / "clm", tokenizer, causal=True)
    return folder


@pytest.fixture(scope="module")
def held_out(folder) -> HeldOut:
    return HeldOut(Dataset(folder / "data"), Masks(10, ROW, 0.3))


def documents_of_rows(held_out: HeldOut) -> list[list[list[int]]]:
    """The ids of the documents of each row, specials included."""
    rows = []
    for laid_out in held_out.laid_out():
        for row in laid_out.rows.tokens.tolist():
            ends = [at + 1 for at, id in enumerate(row) if id == SEP]
            rows.append([row[start:end] for start, end in itertools.pairwise([0, *ends])])
    return rows


def log_probabilities(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)


def integral(model, documents: list[list[int]]) -> float:
    """MDLM's bound of a row: the integral over t of E[sum of -log p of the masked tokens] / t, by exact quadrature."""
    places = [(d, p) for d, document in enumerate(documents) for p, id in enumerate(document) if id > MASK]
    nodes, weights = np.polynomial.legendre.leggauss(len(places))
    nodes, weights = (nodes + 1) / 2, weights / 2
    total, in_context = 0.0, functools.cache(lambda seen: log_probabilities(model, list(seen)))
    for chosen in itertools.product([False, True], repeat=len(places)):
        if not any(chosen):
            continue
        masked = [place for place, one in zip(places, chosen, strict=True) if one]
        nats = 0.0
        for number, document in enumerate(documents):
            here = [place for of, place in masked if of == number]
            seen = tuple(MASK if at in here else id for at, id in enumerate(document))
            nats -= sum(in_context(seen)[place, document[place]].item() for place in here)
        k, n = len(masked), len(places)
        total += nats * float((weights * nodes ** (k - 1) * (1 - nodes) ** (n - k)).sum())
    return total


@pytest.fixture(scope="module")
def repeated(folder, held_out) -> list[RowLikelihoods]:
    """Independent estimates of four draws each."""
    model, found = open_model(folder / "mlm"), []
    with pytest.MonkeyPatch.context() as patched:
        for seed in range(150):
            patched.setattr(text_likelihood, "_SEED", seed)
            found.append(row_likelihoods(held_out, model, 4))
    return found


def test_the_bound_is_the_integral_over_rates(folder, held_out, repeated):
    rows = documents_of_rows(held_out)
    assert max(map(len, rows)) == 2  # masks of one document do not change another
    model, _ = load_language_model(folder / "mlm")
    expected = np.array([integral(model, documents) for documents in rows])
    estimates = np.array([one.nats for one in repeated])
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    assert (np.abs(estimates.mean(axis=0) - expected) < 4.5 * error).all()
    assert (error < 0.04 * expected).all()


def test_a_causal_model_gives_the_sum_over_the_same_tokens(folder, held_out):
    model, _ = load_language_model(folder / "clm")
    found = row_likelihoods(held_out, open_model(folder / "clm"), 2)

    def exact(document):
        places = (place for place, id in enumerate(document) if id > MASK)
        return -sum(log_probabilities(model, document[:place])[-1, document[place]].item() for place in places)

    expected = [sum(map(exact, documents)) for documents in documents_of_rows(held_out)]
    assert found.nats == pytest.approx(expected, rel=1e-5)
    masked = row_likelihoods(held_out, open_model(folder / "mlm"), 2)
    assert found.tokens.tolist() == masked.tokens.tolist()
    assert found.tokens.sum() == 11  # all but [UNK], [CLS] and [SEP]


def test_masks_of_a_row_do_not_depend_on_the_rows_read_with_it(folder, held_out, monkeypatch):
    together: RowLikelihoods = row_likelihoods(held_out, open_model(folder / "mlm"), 4)
    monkeypatch.setattr("evaluation.likelihood.held_out_loss._SLOTS", ROW)
    alone = row_likelihoods(held_out, open_model(folder / "mlm"), 4)
    # Read together, they are in another order.
    assert sorted(alone.nats) == pytest.approx(sorted(together.nats), rel=1e-5)
