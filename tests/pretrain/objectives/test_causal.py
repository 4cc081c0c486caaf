"""The causal objective: which tokens are predicted, and from which tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrain.config import OBJECTIVES
from pretrain.data import BatchRows
from pretrain.data.batch_view import ShownPrediction
from pretrain.masking import IGNORED, Vocabulary
from pretrain.objectives import CausalTokens, Objective
from tests.support import masks
from tests.support.batches import batch_of

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(size=50, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special_ids=frozenset({0, 1, 2, 3, 4, 30}))


def row(seq_len: int, documents: list[list[int]]) -> list[int]:
    """Documents as packing lays them out, with padding after them."""
    tokens = [id for document in documents for id in (CLS, *document, SEP)][:seq_len]
    return tokens + [PAD] * (seq_len - len(tokens))


def check_predictions(
    objective: Objective, tokens: np.ndarray, wanted: list[list[tuple[int, int]]], slots: int
) -> None:
    """Check that nothing is masked, and that rows [R, S] have these pairs of slot and label, and then unused places."""
    seq_len, masked = tokens.shape[1], objective(masks.rows_of(tokens), 0.15)
    assert (masked.tokens == tokens.reshape(-1)).all()
    assert len(masked.labels) == len(tokens) * objective.slots(seq_len) == len(tokens) * slots
    positions, labels = (part.reshape(len(tokens), -1).tolist() for part in (masked.positions, masked.labels))
    for number, predictions in enumerate(wanted):
        start, used = number * seq_len, len(predictions)
        pairs = list(zip(positions[number], labels[number], strict=True))
        assert pairs[:used] == [(start + slot, label) for slot, label in predictions]
        assert set(pairs[used:]) <= {(start, IGNORED)}


@given(
    rows=st.lists(
        st.lists(st.lists(st.integers(0, 49).filter(lambda id: id not in (PAD, CLS, SEP)), max_size=12), max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_every_ordinary_token_is_predicted_from_the_slot_before_it(rows):
    seq_len = max(8, *(sum(len(document) + 2 for document in documents) for documents in rows))
    wanted = []
    for documents in rows:
        predictions, start = [], 0
        for document in documents:
            predictions += [(start + i, id) for i, id in enumerate(document) if id not in VOCABULARY.special_ids]
            start += len(document) + 2
        wanted.append(predictions)
    tokens = np.array([row(seq_len, documents) for documents in rows])
    check_predictions(CausalTokens(VOCABULARY), tokens, wanted, seq_len - 2)


def test_the_label_of_a_slot_is_shown_at_the_next():
    tokens = np.array([row(12, [[10, 11, UNK], [13]])])
    found = CausalTokens(VOCABULARY)(masks.rows_of(tokens), 1.0)
    batch = batch_of(tokens, found.labels.reshape(1, -1), found.positions.reshape(1, -1))
    batch.positions[:] = [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]
    rows = BatchRows.of([batch], [OBJECTIVES["clm"]])
    assert (rows.original == tokens).all()
    first, second = rows.rows(0, 1).documents(VOCABULARY)[0]
    assert first.original == first.seen == [CLS, 10, 11, UNK, SEP]
    assert first.predictions == [ShownPrediction(1, 10, "next"), ShownPrediction(2, 11, "next")]
    assert (second.slot, second.predictions) == (5, [ShownPrediction(1, 13, "next")])
