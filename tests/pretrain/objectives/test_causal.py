"""The causal objective: which tokens are predicted, and from which tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrain.config import OBJECTIVES
from pretrain.data import BatchRows
from pretrain.data.batch_view import ShownPrediction
from pretrain.masking import IGNORED, Vocabulary
from pretrain.objectives.causal import CausalTokens
from tests.support import masks
from tests.support.batches import batch_of

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = Vocabulary(size=50, pad=PAD, cls=CLS, sep=SEP, mask=MASK, special_ids=frozenset({0, 1, 2, 3, 4, 30}))


def row(seq_len: int, documents: list[list[int]]) -> list[int]:
    """Documents as packing lays them out, with padding after them."""
    tokens = [id for document in documents for id in (CLS, *document, SEP)][:seq_len]
    return tokens + [PAD] * (seq_len - len(tokens))


@given(
    rows=st.lists(
        st.lists(st.lists(st.integers(0, 49).filter(lambda id: id not in (PAD, CLS, SEP)), max_size=12), max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_every_ordinary_token_is_predicted_from_the_slot_before_it(rows):
    seq_len = max(8, *(sum(len(document) + 2 for document in documents) for documents in rows))
    tokens = np.array([row(seq_len, documents) for documents in rows])
    objective = CausalTokens(VOCABULARY)
    found = objective(masks.rows_of(tokens), 0.15)
    assert (found.tokens == tokens.reshape(-1)).all(), "nothing is masked"
    positions, labels = found.positions.reshape(len(rows), -1), found.labels.reshape(len(rows), -1)
    assert labels.shape[1] == objective.slots(seq_len) == seq_len - 2
    for number, documents in enumerate(rows):
        wanted, start = [], number * seq_len
        for document in documents:
            wanted += [(start + i, id) for i, id in enumerate(document) if id not in VOCABULARY.special_ids]
            start += len(document) + 2
        pairs = list(zip(positions[number].tolist(), labels[number].tolist(), strict=True))
        assert pairs[: len(wanted)] == wanted
        assert set(pairs[len(wanted) :]) <= {(number * seq_len, IGNORED)}


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
