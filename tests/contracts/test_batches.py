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
# By plan version and case: a digest for each step, and the position after the last.
GOLDEN = {
    (3, "16"): [
        "96bd418059016df0",
        "3d020a95d208f38a",
        "702824c728b0c669",
        "62712f889535d9a9",
        "ab2cc1f404bbbfb2",
        "39887f2555125c20",
        "0.0.24",
    ],
    (3, "128"): [
        "c8e471e0ac533a62",
        "074d626bbe06d583",
        "0cc32935d7a5ae54",
        "9253ffa34e839dda",
        "b2669a86ce606a91",
        "e95d60759e4ef2af",
        "0.1.13",
    ],
    (3, "512"): [
        "d317a0272d8a782e",
        "d4986477f4303eb4",
        "0d30563cbb54b0ce",
        "ea13cd8d3d10e632",
        "a7048463dcdb3ca7",
        "5ae88ee2e439e8ae",
        "2.1.0",
    ],
    (3, "128 concat"): [
        "1002e955e9e120de",
        "9e3c253a2a4bdcbb",
        "169de1f3dab8581e",
        "ab2afb82e49e732c",
        "b5cc1174069db2f8",
        "db985d4ae66ece9b",
        "0.1.13",
    ],
    (3, "128 none"): [
        "ecebe1ac4dc5c87f",
        "398a42cf7bac0770",
        "62e44b3367a0a44f",
        "7acfdb7c6f6eb124",
        "70b156e7ad4da2d6",
        "33b175a7dbdbc13b",
        "0.1.7",
    ],
    (3, "16 to 128 to 64"): [
        "96bd418059016df0",
        "3d020a95d208f38a",
        "cdbd85ec9d031872",
        "454562f37f6abefa",
        "b56c3e770f94072d",
        "fbe35a3d6ce72e65",
        "0.1.3",
    ],
    (3, "two sources"): [
        "a08d922f0fe99dc3",
        "9b56b107568dc018",
        "fa59bd59dd9b5837",
        "f44502e3c889e1ee",
        "2a0353c99d3a0570",
        "f0d6c595205246a0",
        "0.0.9 0.0.15",
    ],
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


def digests(case: str) -> list[str]:
    """One digest for each of the first steps, and the position after them."""
    lengths, packing, weights = CASES[case]
    masking = token_masking(VOCABULARY, 0.15, 0.8, 0.1, SEED, "train")
    stages = [BatchStage(after_step, seq_len, 1, 1, ROWS) for after_step, seq_len in lengths]
    sources = [ArithmeticBlocks() for _ in weights]
    loader = memory_loader(
        sources, VOCABULARY, masking, stages, seed=SEED, window_blocks=3, packing=packing, weights=weights
    )
    found, position = [], loader.mixture.start()
    for steps_done in range(STEPS):
        step = loader.step(steps_done, position)
        digest = hashlib.sha256()
        for name in ARRAYS:
            digest.update(as_stored(step.batches[0], name).astype("<i8").tobytes())
        found.append(digest.hexdigest()[:16])
        position = step.after
    places = [f"{place.epoch}.{place.window}.{place.row}{list(place.past) or ''}" for place in position.sources]
    return [*found, " ".join(places)]


def as_stored(batch: Batch, name: str) -> np.ndarray:
    """An array in the form of the stored digests: cu_seqlens then repeated its last value to a fixed size."""
    array = getattr(batch, name)
    size = ROWS * (batch.seq_len // 3 + 1) + 1
    return np.pad(array, (0, size - len(array)), mode="edge") if name == "cu_seqlens" else array


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_this_plan_version(case):
    assert digests(case) == GOLDEN[PLAN_VERSION, case]
