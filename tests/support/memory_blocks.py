"""A data set in memory, with the surface the stream reads (pretrain.data.window.Blocks), and loaders over such sets."""

from collections.abc import Sequence

import numpy as np

from data_prep.common.errors import DamagedData
from pretrain.data import BatchStage, Loader
from pretrain.data.mixture import Mixture
from pretrain.data.packing import Mode
from pretrain.data.source_order import SourceOrder
from pretrain.data.stream import RowStream
from pretrain.data.window import BlockReader, ReadFlags
from pretrain.masking import Vocabulary
from pretrain.objectives import Objective


class MemoryBlocks:
    """Blocks of documents with the given lengths and random tokens; those in `damaged` cannot be read."""

    dtype = np.dtype("<u2")

    def __init__(
        self,
        lengths: Sequence[Sequence[int]],
        first_id: int = 5,
        vocab_size: int = 101,
        seed: int = 0,
        damaged: Sequence[int] = (),
    ):
        rng = np.random.default_rng(seed)
        self.n_blocks, self.damaged = len(lengths), damaged
        self._lengths = [np.array(block, dtype=np.uint32) for block in lengths]
        self.ids = [
            rng.integers(first_id, vocab_size, size=int(block.sum())).astype(np.uint16) for block in self._lengths
        ]

    def document_lengths(self, block: int) -> np.ndarray:
        return self._lengths[block]

    def read_tokens(self, block: int, out: np.ndarray) -> None:
        if block in self.damaged:
            raise DamagedData(f"block {block} is damaged.")
        out[:] = self.ids[block]

    def tokens(self, block: int) -> np.ndarray:
        return self.ids[block]


def numbered(lengths: Sequence[Sequence[int]], first: int = 5) -> MemoryBlocks:
    """Blocks whose tokens all have different ids."""
    blocks = MemoryBlocks(lengths)
    for tokens in blocks.ids:
        tokens[:] = np.arange(first, first + len(tokens))
        first += len(tokens)
    return blocks


def memory_loader(
    sources: Sequence[MemoryBlocks],
    vocabulary: Vocabulary,
    masking: Objective,
    stages: Sequence[BatchStage],
    rank: int = 0,
    seed: int = 5,
    window_blocks: int = 2,
    packing: Mode = "best_fit",
    weights: Sequence[float] = (1.0,),
    rate: float = 0.15,
    flags: ReadFlags | None = None,
    order: SourceOrder | None = None,
) -> Loader:
    """The loader of one rank over data sets in memory. order: of their blocks."""
    streams = [
        RowStream(BlockReader(blocks, flags=flags), seed, window_blocks, packing, n, order=order)
        for n, blocks in enumerate(sources)
    ]
    return Loader(Mixture(streams, [weights], seed), stages, vocabulary, [masking], lambda _: rate, rank)


def one_stage(seq_len: int, world_size: int = 1, accumulation: int = 1, micro: int = 1) -> list[BatchStage]:
    """The stages of a run whose rows and batches never change."""
    return [BatchStage(0, seq_len, world_size, accumulation, micro)]
