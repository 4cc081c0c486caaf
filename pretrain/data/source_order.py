"""Order of the blocks of a data set whose sources are mixed.

Weights become quotas of blocks a window, so that each window of all sources together has its share of each. The blocks
of a source before any window are counted in closed form, so the order needs no state that grows with the sources.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.data.quotas import Quotas
from pretrain.philox import derive_key, permute

_SHOWN = 8  # sources in a message
Turns = tuple[tuple[int, int], ...]  # (phase, first window) of each change of the quotas; phase 0 before them


@dataclass(frozen=True)
class SourceOrder:
    """The blocks of each source, and how many of them each window has in each phase.

    names: of the sources. blocks: int64 [blocks] of each. slots: float64 [sources], the mean that a block fills.
    quotas: of blocks in a window, in each phase of the run.
    """

    names: tuple[str, ...]
    blocks: tuple[NDArray[np.int64], ...]
    slots: NDArray[np.float64]
    quotas: tuple[Quotas, ...]

    @classmethod
    def of(cls, dataset: Dataset, weights: Sequence[Mapping[str, float] | float], window_blocks: int) -> "SourceOrder":
        """The order of a data set.

        Args:
            weights: in each phase, weights of the sources' tokens by name, or T of shares in proportion to size^(1/T).

        Raises UserError for fewer than two sources, or weights of other names.
        """
        sources = sources_of(dataset)
        if len(sources) < 2:
            advice = "prepare it with --input NAME=FILE for each source, or name several data sets in data.train"
            raise UserError(f"{dataset.location} has no sources to mix; {advice}")
        sizes = np.array([slots for _, slots in sources.values()], dtype=np.float64)
        mean = sizes / [len(blocks) for blocks, _ in sources.values()]
        quotas = []
        for of_phase in weights:
            if isinstance(of_phase, Mapping):
                if differing := sorted(set(of_phase) ^ set(sources)):
                    raise UserError(
                        f"{dataset.location} and the weights of its sources differ in {differing[0]!r}; give each of "
                        f"its {len(sources)} sources a weight, 0 to leave one out"
                    )
                shares = np.array([of_phase[name] for name in sources])
            else:
                shares = sizes ** (1 / of_phase)
            quotas.append(Quotas.of(shares / mean, window_blocks, several=True))
        return cls(tuple(sources), tuple(blocks for blocks, _ in sources.values()), mean, tuple(quotas))

    def shares(self, phase: int = 0) -> dict[str, float]:
        """The share of the slots that each source fills in a phase, the largest first."""
        slots = self.quotas[phase].rows * self.slots
        return {self.names[n]: float(slots[n] / slots.sum()) for n in np.argsort(-slots, kind="stable")}

    def __str__(self) -> str:
        parts = [f"{name or 'unnamed'} {share:.1%}" for name, share in self.shares().items()]
        return f"tokens of {len(parts)} sources: {', '.join(parts[:_SHOWN])}{', ...' if parts[_SHOWN:] else ''}"

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the order, in the first phase."""
        digest = hashlib.sha256(self.quotas[0].rows.tobytes())
        for name, blocks in zip(self.names, self.blocks, strict=True):
            digest.update(f"{name} {len(blocks)}\n".encode() + blocks.tobytes())
        return digest.hexdigest()

    def turned(self, turns: Turns, phase: int, window: int) -> Turns:
        """The turns for rows of a phase from a window on.

        Raises UserError if they are not turns of this order.
        """
        *_, last = (0, *(number for number, _ in turns))
        if last >= len(self.quotas):
            raise UserError(f"the position is not one of these data: it knows phase {last}")
        same = np.array_equal(self.quotas[last].rows, self.quotas[phase].rows)
        return turns if same else (*turns, (phase, window))

    def window(self, turns: Turns, window: int, seed: int, start: str) -> NDArray[np.int64]:
        """The blocks of a window, source by source: int64 [blocks].

        Each source has its own epochs, each in another order. start: keys the order, with the seed.
        """
        before, after = self._before(turns, window), self._before(turns, window + 1)
        changed = np.flatnonzero(after > before)
        return np.concatenate([self._numbered(n, before[n], after[n], seed, start) for n in changed.tolist()])

    def _numbered(self, source: int, first: int, end: int, seed: int, start: str) -> NDArray[np.int64]:
        """The blocks first .. end - 1 of the endless sequence of a source, epoch by epoch."""
        blocks, key = self.blocks[source], derive_key(seed, f"blocks of {self.names[source]} in {start}")
        epochs, places = np.divmod(np.arange(first, end), len(blocks))
        starts = np.flatnonzero(np.diff(epochs, prepend=-1))
        parts = zip(np.split(places, starts[1:]), epochs[starts].tolist(), strict=True)
        return blocks[np.concatenate([permute(part, len(blocks), key, epoch) for part, epoch in parts])]

    def _before(self, turns: Turns, window: int) -> NDArray[np.int64]:
        """How many blocks of each source the windows before this one have: int64 [sources]."""
        phases = [(0, 0), *((phase, min(first, window)) for phase, first in turns), (0, window)]
        counts = np.zeros(len(self.names), dtype=np.int64)
        for (phase, first), (_, end) in pairwise(phases):
            counts += self.quotas[phase].before(end) - self.quotas[phase].before(first)
        return counts


def sources_of(dataset: Dataset) -> dict[str, tuple[NDArray[np.int64], float]]:
    """The blocks of each named source of a data set, and the slots that its documents fill, by the manifest alone.

    Blocks of inputs without a name are a source with the name "".
    """
    shards = dataset.manifest.shards
    names, of_shard = np.unique(dataset.manifest.shard_sources(), return_inverse=True)
    of_block = np.repeat(of_shard, [shard.blocks for shard in shards])
    blocks = np.split(np.argsort(of_block, kind="stable"), np.cumsum(np.bincount(of_block))[:-1])
    slots = np.bincount(of_shard, [shard.tokens + SPECIALS_PER_PIECE * shard.documents for shard in shards])
    return dict(zip(names.tolist(), zip(blocks, slots.tolist(), strict=True), strict=True))
