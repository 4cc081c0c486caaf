"""Golden batches: the first steps over a fixed data set, bit for bit.

They follow from integers alone, so they are the same on every machine. A change that moves them breaks the resume of
every run there is: raise PLAN_VERSION in pretrain/data/stream.py, and only then write the new digests here.
"""

import hashlib

import numpy as np
import pytest

from pretrain.data.loader import BatchShape, Loader
from pretrain.data.stream import PLAN_VERSION, Position, RowStream
from pretrain.masking.reference import TokenMasking
from pretrain.masking.vocabulary import Vocabulary

STEPS, ROWS, SEED = 6, 4, 11
VOCABULARY = Vocabulary(size=1000, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
ARRAYS = ("tokens", "positions", "cu_seqlens", "masked_positions", "labels")
# By plan version and seq_len: a digest for each step, and the position after the last.
GOLDEN = {
    (1, 16): [
        "a0dfb36d4be3fcff",
        "22e382805677fab2",
        "feceee6fb1990dd8",
        "ccd21aa0da8c993b",
        "4e17d8807b70dffc",
        "5d94e14d3d32ec08",
        "0.0.24",
    ],
    (1, 128): [
        "c33dcf66d68e6721",
        "652b3546e90c5257",
        "bb02176ce98bf6aa",
        "1c6a4020183c78e6",
        "dca2dfd3f86c7abd",
        "8f3c58b523b368b9",
        "0.2.0",
    ],
    (1, 512): [
        "0b1a2d36bf4980eb",
        "dc83f824a4bf29a4",
        "cca3c82a7aab48a4",
        "a121367c2e5c5ad4",
        "7aa532817cf9e2ea",
        "9e523b2e13f899f3",
        "2.1.2",
    ],
}


class ArithmeticBlocks:
    """Seven blocks of one to nine documents of 1 to 299 tokens, by arithmetic that no library can change."""

    n_blocks = 7

    def document_lengths(self, block: int) -> np.ndarray:
        lengths = [(131 * block + 97 * document) % 299 + 1 for document in range(block % 5 * 2 + 1)]
        return np.array(lengths, dtype=np.uint32)

    def tokens(self, block: int) -> np.ndarray:
        places = np.arange(self.document_lengths(block).sum(), dtype=np.int64)
        return (5 + (places * 7919 + 31 * block) % 995).astype(np.uint16)


def digests(seq_len: int) -> list[str]:
    """One digest for each of the first steps, and the position after them."""
    masking = TokenMasking(VOCABULARY, 0.15, 0.8, 0.1, SEED, "train")
    stream = RowStream(ArithmeticBlocks(), seq_len, SEED, window_blocks=3)
    loader = Loader(stream, seq_len, VOCABULARY, masking, BatchShape(1, 1, ROWS), rank=0)
    found, position = [], Position()
    for _ in range(STEPS):
        step = loader.step(position)
        digest = hashlib.sha256()
        for name in ARRAYS:
            digest.update(getattr(step.batches[0], name).astype("<i8").tobytes())
        found.append(digest.hexdigest()[:16])
        position = step.after
    return [*found, f"{position.epoch}.{position.window}.{position.row}"]


@pytest.mark.parametrize("seq_len", [16, 128, 512])
def test_batches_are_those_of_this_plan_version(seq_len):
    assert digests(seq_len) == GOLDEN[PLAN_VERSION, seq_len]
