"""Global batches over a data set in memory, cut in any way, and the first batches of a run."""

import numpy as np

from pretrain.config import Config
from pretrain.data import Batch, BatchStage, Loader, MixturePosition, Sources
from pretrain.data.stream import Position
from pretrain.masking import Vocabulary
from tests.support.masks import token_masking
from tests.support.memory_blocks import MemoryBlocks, memory_loader, one_stage

SEQ_LEN, ROWS = 16, 12
VOCABULARY = Vocabulary(size=101, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
BLOCKS = MemoryBlocks([[20, 3, 9], [1, 1, 40, 2], [14], [30, 30], [7, 6, 5]])


def batches(
    world_size: int = 1, accumulation: int = 1, seed: int = 5, rate: float = 0.3, row: int = 0, seq_len: int = SEQ_LEN
) -> list[Batch]:
    """The micro-batches of a global batch of ROWS rows, rank after rank."""
    stages = one_stage(seq_len, world_size, accumulation, ROWS // world_size // accumulation)
    masking = token_masking(VOCABULARY, rate, 0.6, 0.2, seed=seed, purpose="train")
    found: list[Batch] = []
    for rank in range(world_size):
        loader = memory_loader([BLOCKS], VOCABULARY, masking, stages, rank, rate=rate)
        found += loader.step(0, MixturePosition(row, (Position(0, 0, row),))).batches
    return found


def first_batches(config: Config, steps: int = 3) -> list[Batch]:
    """The micro-batches of the first steps of a run of one process."""
    loader = Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), rank=0)
    found, position = [], loader.mixture.start()
    for steps_done in range(steps):
        step = loader.step(steps_done, position)
        found += step.batches
        position = step.after
    loader.close()
    return found


def batch_of(tokens: np.ndarray, labels: np.ndarray, columns: np.ndarray) -> Batch:
    """A micro-batch of tokens [R, S], labels [R, M] at columns [R, M]; one document a row."""
    rows, seq_len = tokens.shape
    places = (np.arange(rows)[:, None] * seq_len + columns).reshape(-1)
    positions = np.tile(np.arange(seq_len), rows)
    ends = np.arange(rows + 1, dtype=np.int32) * seq_len
    return Batch(seq_len, tokens.reshape(-1), positions, ends, places, labels.reshape(-1), tokens.size, 0)
