"""Objectives that predict the next token, clm and prefix: which tokens, from what, and the loss of a plain twin."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from data_prep.common.errors import UserError
from pretrain.config import OBJECTIVES, View
from pretrain.data import BatchRows, Sources
from pretrain.data.batch_view import ShownPrediction
from pretrain.masking import IGNORED, Vocabulary
from pretrain.model import native_encoder
from pretrain.objectives import CausalTokens, Objective
from pretrain.objectives.prefix import PrefixTokens
from tests.support import masks
from tests.support.batches import batch_of
from tests.support.configs import least_config
from tests.support.datasets import make_dataset
from tests.support.encoders import check_gradients, hugging_face

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = 30  # an added one
VOCABULARY = Vocabulary(size=101, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special_ids=frozenset({*range(5), SPECIAL}))
TEXT = st.lists(st.sampled_from([UNK, MASK, *range(5, 101)]), max_size=12)
SOURCE = st.lists(st.sampled_from([UNK, MASK, *range(5, 101)]), min_size=1, max_size=8)
CASES = ["bert", "roberta", "modernbert"]
S = 24
# Documents of three rows of 24 slots: pairs, a text without a target, and padding.
PAIRS = [[([9, 8, 7], [6, 5, 10, 11]), ([20, 21], [22, UNK, 23])], [([30] * 10 + [31], [32] * 9)], [([40, 41, 42], [])]]
Pairs = list[tuple[list[int], list[int]]]


def document(source: list[int], target: list[int]) -> list[int]:
    return [CLS, *source, SEP, *target, SEP] if target else [CLS, *source, SEP]


def row(seq_len: int, pairs: Pairs) -> list[int]:
    """Documents as packing lays them out, with padding after them."""
    tokens = [id for pair in pairs for id in document(*pair)]
    return tokens + [PAD] * (seq_len - len(tokens))


def check_predictions(objective: Objective, rows: list[Pairs], of_pair, spare: int) -> None:
    """Check that nothing is masked, and that each row has the wanted predictions, and then unused places.

    Args:
        of_pair: the slots in a document that predict, and their labels.
        spare: slots of a row that have no place for a prediction.
    """
    seq_len = max(8, *(sum(len(document(*pair)) for pair in pairs) for pairs in rows))
    tokens = np.array([row(seq_len, pairs) for pairs in rows])
    masked = objective(masks.rows_of(tokens), 0.15)
    assert (masked.tokens == tokens.reshape(-1)).all()
    assert len(masked.labels) == len(tokens) * objective.slots(seq_len) == len(tokens) * (seq_len - spare)
    positions, labels = (part.reshape(len(tokens), -1).tolist() for part in (masked.positions, masked.labels))
    for number, pairs in enumerate(rows):
        start, wanted = number * seq_len, []
        for pair in pairs:
            wanted += [(start + slot, label) for slot, label in of_pair(*pair) if label not in {UNK, MASK, SPECIAL}]
            start += len(document(*pair))
        found = list(zip(positions[number], labels[number], strict=True))
        assert found[: len(wanted)] == wanted
        assert set(found[len(wanted) :]) <= {(number * seq_len, IGNORED)}


@given(st.lists(st.lists(st.tuples(TEXT, st.just([])), max_size=4), min_size=1, max_size=5))
def test_every_ordinary_token_is_predicted_from_the_slot_before_it(rows):
    check_predictions(CausalTokens(VOCABULARY), rows, lambda text, _: enumerate(text), spare=2)


@given(st.lists(st.lists(st.tuples(SOURCE, st.one_of(SOURCE, st.just([]))), max_size=3), min_size=1, max_size=4))
def test_every_token_of_a_target_and_its_end_is_predicted_from_the_slot_before_it(rows):
    def predictions(source, target):
        return enumerate([*target, SEP] if target else [], len(source) + 1)  # the slot of the [SEP] after the source

    check_predictions(PrefixTokens(VOCABULARY), rows, predictions, spare=3)


def test_the_label_of_a_slot_is_shown_at_the_next():
    tokens = np.array([row(12, [([10, 11, UNK], []), ([13], [])])])
    found = CausalTokens(VOCABULARY)(masks.rows_of(tokens), 1.0)
    batch = batch_of(tokens, found.labels.reshape(1, -1), found.positions.reshape(1, -1))
    batch.positions[:] = [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]
    rows = BatchRows.of([batch], [OBJECTIVES["clm"]])
    assert (rows.original == tokens).all()
    first, second = rows.rows(0, 1).documents(VOCABULARY)[0]
    assert first.original == first.seen == [CLS, 10, 11, UNK, SEP]
    assert first.predictions == [ShownPrediction(1, 10, "next"), ShownPrediction(2, 11, "next")]
    assert (second.slot, second.predictions) == (5, [ShownPrediction(1, 13, "next")])


def batch(rows: list[Pairs]) -> dict[str, Tensor]:
    """The model's input for rows of S slots."""
    tokens = np.array([row(S, pairs) for pairs in rows])
    lengths = []
    for pairs in rows:
        of_pairs = [len(document(*pair)) for pair in pairs]
        lengths += [length for length in (*of_pairs, S - sum(of_pairs)) if length]  # the last one is of padding
    found = PrefixTokens(VOCABULARY)(masks.rows_of(tokens), 1.0)
    return {
        "tokens": torch.from_numpy(found.tokens),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        "masked_positions": torch.from_numpy(found.positions),
        "labels": torch.from_numpy(found.labels),
    }


def translator(case: str):
    """A model of transformers, and the native encoder with prefix attention and the same weights."""
    model = hugging_face(case, sep_id=SEP, pad_id=PAD)
    encoder = native_encoder(model)
    assert encoder.shape.sep_id == SEP
    assert encoder.shape.view is View.PREFIX
    return model, encoder


def prefix_mask(source: int, length: int, reach: int | None) -> Tensor:
    """[1, 1, S, S] bool, from the definition: the first `source` tokens see each other, the others what precedes."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    sees = torch.where(query < source, key < source, key <= query)
    return (sees & ((query - key).abs() <= (length if reach is None else reach)))[None, None]


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_those_of_a_plain_model_under_the_mask(case):
    """transformers computes each pair alone, under a mask of its own; its logits at i - 1 predict token i."""
    model, encoder = translator(case)
    wanted, predictions = torch.zeros(()), 0
    for source, target in [pair for pairs in PAIRS for pair in pairs]:
        ids = torch.tensor(document(source, target))
        first = len(source) + 2
        mask = prefix_mask(first, len(ids), None)
        if case == "modernbert":
            local = prefix_mask(first, len(ids), encoder.shape.window // 2)
            mask = {"full_attention": mask, "sliding_attention": local}
        logits = model(input_ids=ids[None], attention_mask=mask).logits[0]
        labels = torch.where((ids > MASK) | (ids == SEP), ids, IGNORED)[first:]
        wanted = wanted + F.cross_entropy(logits[first - 1 : -1], labels, ignore_index=IGNORED, reduction="sum")
        predictions += int((labels != IGNORED).sum())
    prediction = encoder(**batch(PAIRS), seq_len=S)
    assert prediction.predictions == predictions == 5 + 3 + 10
    torch.testing.assert_close(prediction.loss, wanted)
    wanted.backward()
    prediction.loss.backward()
    check_gradients(encoder, model)


@pytest.mark.parametrize("case", CASES)
def test_the_exported_class_reads_a_source_as_in_training(case):
    model, encoder = translator(case)
    ids = torch.tensor([CLS, 9, 8, 7, 6, SEP])
    with torch.no_grad():
        found = encoder.logits(encoder.hidden(ids, torch.arange(6), torch.tensor([0, 6], dtype=torch.int32), 6))
        torch.testing.assert_close(found[:, :101], model(input_ids=ids[None]).logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"train": "x", "packing": "concat"}}, "needs whole pairs; set data.packing best_fit"),
        ({"track": {"models": "all"}}, "set it to none"),
        ({"model": {"arch": "auto", "config": "c.json"}}, "needs model.arch bert, roberta or modernbert"),
    ],
)
def test_settings_that_would_cut_pairs_or_do_not_fit_are_refused(sections, message):
    with pytest.raises(ValueError, match=message):
        least_config(objective="prefix", **sections)


def test_data_without_pairs_and_pairs_longer_than_a_row_are_refused(tmp_path):
    sep = make_dataset(tmp_path / "text", [[7, 8, 9]] * 4, 200).manifest.tokenizer.special_ids["sep"]
    make_dataset(tmp_path / "pairs", [[7, 8, sep, 9]] * 4, 200)
    make_dataset(tmp_path / "long", [[7, sep, 9], [7, sep, *[9] * 5]], 200)

    def check(train: str, seq_len: int, **more) -> None:
        data = {"train": str(tmp_path / train), "seq_len": seq_len}
        settings = least_config(**{"objective": "prefix", "data": data} | more)
        Sources.open(settings).check(settings)

    check("pairs", 8)
    check("long", 9)
    with pytest.raises(UserError, match=r"text holds no pairs.*--input pair:SOURCE,TARGET"):
        check("text", 8)
    with pytest.raises(UserError, match=r"a pair of 7 tokens, which rows of 8 would cut; set data.seq_len to 9, .* 6"):
        check("long", 8)
    with pytest.raises(UserError, match="holds no pairs"):
        check("text", 8, objective=[{"kind": "prefix", "share": 0.5}, {"kind": "mlm", "share": 0.5}])
    longer = {"data": {"train": str(tmp_path / "long"), "seq_len": 9}, "objective": "prefix"}
    of_phases = [{"name": "a", "steps": 5}, {"name": "b", "steps": 5} | longer]
    check("text", 8, objective="mlm", phases=of_phases)  # each phase is checked on the data that it reads
