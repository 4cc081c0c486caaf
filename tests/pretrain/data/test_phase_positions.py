"""The place in the data through the phases of random recipes, and the time to find it."""

import json
from dataclasses import asdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.common.reading import typed
from pretrain.data import BatchStage, Loader, MixturePosition
from pretrain.data.mixture import Mixture
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import Vocabulary
from tests.support.datasets import tokenizer_info
from tests.support.masks import token_masking
from tests.support.memory_blocks import MemoryBlocks

VOCABULARY = Vocabulary.of(tokenizer_info(101))
SIZES = ([[30, 7, 90], [12] * 9], [[200], [41, 3]], [[5] * 30])


def loader_of(phases) -> Loader:
    """phases: (steps, seq_len, rows, weights, restart) of each."""
    masking = token_masking(VOCABULARY)
    streams = [
        RowStream(BlockReader(MemoryBlocks(sizes)), 3, 1, "best_fit", source=number, look_ahead=False)
        for number, sizes in enumerate(SIZES)
    ]
    stages, after = [], 0
    for number, (steps, seq_len, rows, _, restart) in enumerate(phases):
        stages.append(BatchStage(after, seq_len, 1, 1, rows, number, restart and number > 0))
        after += steps
    mixture = Mixture(streams, [weights for _, _, _, weights, _ in phases], seed=3)
    return Loader(mixture, stages, VOCABULARY, [masking] * len(phases), lambda _: 0.15, 0)


WEIGHTS = st.tuples(*[st.sampled_from([0.0, 1.0, 3.0])] * 3).filter(any)
PHASE = st.tuples(st.integers(1, 5), st.sampled_from([8, 16, 32]), st.integers(1, 6), WEIGHTS, st.booleans())


@settings(max_examples=40, deadline=None)
@given(st.lists(PHASE, min_size=1, max_size=5), st.data())
def test_a_stored_position_goes_on_as_the_walk_from_the_start(phases, data):
    loader, total = loader_of(phases), sum(phase[0] for phase in phases)
    position, walk = loader.mixture.start(), []
    for step in range(total):
        made = loader.step(step, position)
        walk.append((position, [batch.checksum() for batch in made.batches]))
        position = made.after
    at = data.draw(st.integers(0, total - 1))
    resumed = loader_of(phases)
    stored = typed(MixturePosition, json.loads(json.dumps(asdict(walk[at][0]))))
    for step in range(at, total):
        made = resumed.step(step, stored)
        assert (stored, [batch.checksum() for batch in made.batches]) == walk[step]
        stored = made.after
    assert stored == position
    assert loader_of(phases).skip(0, loader.mixture.start(), total, total) == position
    # Without what a restart skips, each source has given as many rows as the counts of the phases say.
    rows, counts = 0, np.zeros(3, dtype=np.int64)
    for number, (steps, _, of_step, _, _) in enumerate(phases):
        counts += loader.mixture.count_rows(rows, steps * of_step, number)
        rows += steps * of_step
    assert (position.dealt, int(counts.sum())) == (rows, rows)
    unread = [source for source in range(3) if not any(weights[source] for _, _, _, weights, _ in phases)]
    assert all(position.sources[source].epoch == 0 and position.sources[source].row == 0 for source in unread)


def test_a_restart_begins_the_next_epoch_once():
    assert Position().restarted() == Position()
    assert Position(2, 1, 5, ((8, 3),)).restarted() == Position(3)
    assert Position(3).restarted() == Position(3)
