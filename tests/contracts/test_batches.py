"""Golden batches: the first steps over fixed data sets must not change by a bit.

They follow from integers alone, so they are the same on every machine. A change that moves them breaks the resume of
every run there is: raise PLAN_VERSION in pretrain/data/stream.py, and only then write the new digests here.
"""

import hashlib

import numpy as np
import pytest

from pretrain.data import PLAN_VERSION, Batch, BatchStage
from pretrain.masking import Vocabulary
from tests.support.masks import token_masking
from tests.support.memory_blocks import memory_loader

STEPS, ROWS, SEED = 6, 4, 11
VOCABULARY = Vocabulary(size=1000, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
ARRAYS = ("tokens", "positions", "cu_seqlens", "masked_positions", "labels")
# By case: sequence lengths from which step on, packing, weights of the sources.
CASES = {
    "16": ([(0, 16)], "best_fit", [1]),
    "128": ([(0, 128)], "best_fit", [1]),
    "512": ([(0, 512)], "best_fit", [1]),
    "128 concat": ([(0, 128)], "concat", [1]),
    "128 none": ([(0, 128)], "none", [1]),
    "16 to 128 to 64": ([(0, 16), (2, 128), (4, 64)], "best_fit", [1]),
    "two sources": ([(0, 64)], "best_fit", [1, 3]),
}
# By plan version and case: a digest of all arrays of the first steps, and the position after them.
GOLDEN = {
    (3, "16"): "b52df13ea2b1a30b 0.0.24",
    (3, "128"): "6b0d831580fc32eb 0.1.13",
    (3, "512"): "e82b7bf4a41c0fa7 2.1.0",
    (3, "128 concat"): "482220793db56e5d 0.1.13",
    (3, "128 none"): "2d59cd6dcbb0961f 0.1.7",
    (3, "16 to 128 to 64"): "1edb4b035f466ff3 0.1.3",
    (3, "two sources"): "4a91c88d161e29fa 0.0.9 0.0.15",
}


class ArithmeticBlocks:
    """Seven blocks of one to nine documents of 1 to 299 tokens, by arithmetic that no library can change."""

    n_blocks, dtype = 7, np.dtype("<u2")

    def document_lengths(self, block: int) -> np.ndarray:
        lengths = [(131 * block + 97 * document) % 299 + 1 for document in range(block % 5 * 2 + 1)]
        return np.array(lengths, dtype=np.uint32)

    def read_tokens(self, block: int, out: np.ndarray) -> None:
        places = np.arange(self.document_lengths(block).sum(), dtype=np.int64)
        out[:] = 5 + (places * 7919 + 31 * block) % 995


def digest_of(case: str) -> str:
    """A digest of the first steps, and the position after them."""
    lengths, packing, weights = CASES[case]
    masking = token_masking(VOCABULARY, 0.15, 0.8, 0.1, SEED, "train")
    stages = [BatchStage(after_step, seq_len, 1, 1, ROWS) for after_step, seq_len in lengths]
    sources = [ArithmeticBlocks() for _ in weights]
    loader = memory_loader(
        sources, VOCABULARY, masking, stages, seed=SEED, window_blocks=3, packing=packing, weights=weights
    )
    digest, position = hashlib.sha256(), loader.mixture.start()
    for steps_done in range(STEPS):
        step = loader.step(steps_done, position)
        for name in ARRAYS:
            digest.update(as_stored(step.batches[0], name).astype("<i8").tobytes())
        position = step.after
    places = [f"{place.epoch}.{place.window}.{place.row}{list(place.past) or ''}" for place in position.sources]
    return " ".join([digest.hexdigest()[:16], *places])


def as_stored(batch: Batch, name: str) -> np.ndarray:
    """An array in the form of the stored digests: cu_seqlens then repeated its last value to a fixed size."""
    array = getattr(batch, name)
    size = ROWS * (batch.seq_len // 3 + 1) + 1
    return np.pad(array, (0, size - len(array)), mode="edge") if name == "cu_seqlens" else array


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_this_plan_version(case):
    assert digest_of(case) == GOLDEN[PLAN_VERSION, case]
