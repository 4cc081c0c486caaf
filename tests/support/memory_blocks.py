"""A data set in memory, with the surface the stream reads (pretrain.data.stream.Blocks)."""

import numpy as np


class MemoryBlocks:
    """Blocks of documents with the given lengths; token values are unique within the set while the dtype allows it."""

    def __init__(self, lengths: list[list[int]], first_id: int = 5, vocab_size: int = 101, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.n_blocks = len(lengths)
        self._lengths = [np.array(block, dtype=np.uint32) for block in lengths]
        self._tokens = [
            rng.integers(first_id, vocab_size, size=int(block.sum())).astype(np.uint16) for block in self._lengths
        ]

    def document_lengths(self, block: int) -> np.ndarray:
        return self._lengths[block]

    def tokens(self, block: int) -> np.ndarray:
        return self._tokens[block]
