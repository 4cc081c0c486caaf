"""Mixtures: exact shares, draws that no split changes, rows as each objective alone makes them, and separate views."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from pretrain.config import Config, View
from pretrain.data import Batch, BatchRows, BatchStage, MixturePosition
from pretrain.data.stream import Position
from pretrain.masking import IGNORED, RowGroup, Rows, TokenFlag
from pretrain.model import Encoder
from pretrain.objectives import Objective, loss_weights, objective_of, predicted_share, shares_at
from pretrain.objectives.objective_mixture import row_objectives, row_quotas
from tests.support.batches import BLOCKS, SEQ_LEN, VOCABULARY
from tests.support.configs import least_config
from tests.support.masks import rows_of
from tests.support.memory_blocks import memory_loader, one_stage
from tests.support.streams import shape_of, stream

ROWS = 24
THREE = [{"kind": "clm", "share": 0.5}, {"kind": "mlm", "share": 0.25}, {"kind": "mntp", "share": 0.25}]


def config(objective: Any, **more: Any) -> Config:
    masking = {} if objective == "clm" else {"rate": 0.3}
    sections = {"data": {"seq_len": SEQ_LEN}, "train": {"steps": 11}, "masking": masking}
    return least_config(**sections | {"objective": objective} | more)


def made(objective: Any) -> Objective:
    return objective_of(config(objective), VOCABULARY, 5, "train")


def step(objective: Objective, world_size: int, accumulation: int) -> list[Batch]:
    """The micro-batches of a global batch, rank after rank."""
    stages = one_stage(SEQ_LEN, world_size, accumulation, ROWS // world_size // accumulation)
    found = []
    for rank in range(world_size):
        loader = memory_loader([BLOCKS], VOCABULARY, objective, stages, rank, rate=0.3)
        found += loader.step(0, MixturePosition(4, (Position(0, 0, 4),))).batches
    return found


def contents(batches: list[Batch], names: list[str]) -> list[tuple]:
    """Of each row: its objective, tokens, and predictions, in an order that no split changes."""
    found = []
    for batch in batches:
        for group, slots, places in batch.by_group():
            number = group.objective if group else 0
            tokens = batch.tokens[slots].reshape(-1, SEQ_LEN)
            labels = batch.labels[places].reshape(len(tokens), -1)
            at = batch.masked_positions[places].reshape(labels.shape) % SEQ_LEN
            for row in range(len(tokens)):
                used = labels[row] != IGNORED
                found.append((names[number], *map(tuple, (tokens[row], at[row][used], labels[row][used]))))
    return sorted(found)


@pytest.mark.parametrize("name", ["mlm", "repair", "diffusion"])
def test_draws_follow_from_seed_purpose_and_row_alone(name):
    run = config(name, masking={})
    rows = rows_of(np.tile([2, *range(5, 69), 3], (30, 1)))
    rows.flags[:] = TokenFlag.TARGET

    def labels(seed: int, purpose: str, of: Rows) -> list[list[int]]:
        masked = objective_of(run, VOCABULARY, seed, purpose)(of, 0.15)
        return masked.labels.reshape(len(of.tokens), -1).tolist()

    first = labels(1, "train", rows)
    assert labels(1, "train", rows[np.arange(20, 30)]) == first[20:]
    other_epoch = dataclasses.replace(rows, row_ids=rows.row_ids + [1, 0, 0])
    for other in (labels(2, "train", rows), labels(1, "valid", rows), labels(1, "train", other_epoch)):
        assert other != first


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 50))
def test_quotas_are_the_nearest_whole_rows(parts, rows):
    shares = [part / sum(parts) for part in parts]
    quotas = row_quotas(shares, rows)
    assert sum(quotas) == rows
    assert all(abs(quota - share * rows) < 1 for quota, share in zip(quotas, shares, strict=True))


def test_each_block_has_the_shares_and_each_row_the_chance_of_its_share():
    ids = np.stack([np.zeros(40_000), np.zeros(40_000), np.arange(40_000)], axis=1).astype(np.int64)
    numbers = row_objectives((1, 2), ids, [20_000, 10_000, 10_000])
    blocks = numbers.reshape(-1, 4)
    assert (np.sort(blocks, axis=1) == [0, 0, 1, 2]).all()
    for place in range(4):  # no place in a block is preferred
        counts = np.bincount(blocks[:, place], minlength=3)
        assert np.abs(counts / len(blocks) - [0.5, 0.25, 0.25]).max() < 5 * np.sqrt(0.25 / len(blocks))


@pytest.mark.parametrize("split", [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_no_split_changes_a_row_or_its_objective(split):
    mixture, names = made(THREE), ["mlm", "mntp", "clm"]
    whole = step(mixture, 1, 1)
    assert contents(step(mixture, *split), names) == contents(whole, names)
    assert sum(batch.checksum() for batch in step(mixture, *split)) == whole[0].checksum()


def test_a_row_is_as_its_objective_alone_makes_it():
    rows = contents(step(made(THREE), 1, 1), ["mlm", "mntp", "clm"])
    for name, share in (("mlm", 0.25), ("mntp", 0.25), ("clm", 0.5)):
        alone = contents(step(made(name), 1, 1), [name])
        found = [row for row in rows if row[0] == name]
        assert len(found) == share * ROWS
        assert set(found) <= set(alone)


def test_masked_next_predicts_the_same_tokens_one_slot_earlier():
    masked, shifted = (contents(step(made(name), 1, 1), [""]) for name in ("mlm", "mntp"))
    earlier = [(name, tokens, tuple(np.array(at) - 1), labels) for name, tokens, at, labels in masked]
    assert earlier == shifted


def test_documents_keep_their_bounds_when_rows_move():
    (mixed,), (plain,) = step(made(THREE), 1, 1), step(made("clm"), 1, 1)
    lengths = [sorted(map(tuple, (batch.positions.reshape(-1, SEQ_LEN) == 0).astype(int))) for batch in (mixed, plain)]
    assert lengths[0] == lengths[1]
    starts = np.flatnonzero(mixed.positions == 0)
    assert (mixed.cu_seqlens[:-1] == starts).all()
    assert mixed.cu_seqlens[-1] == len(mixed.tokens)


def test_a_replayed_row_names_its_objective_and_its_labels():
    (batch,) = step(made(THREE), 1, 1)
    kinds = config(THREE).objective_kinds
    rows = BatchRows.of([batch], kinds)
    assert [kind.name for kind in rows.kinds] == ["mlm"] * 6 + ["mntp"] * 6 + ["clm"] * 12
    for number, documents in enumerate(rows.documents(VOCABULARY)):
        kind = rows.kinds[number]
        for document in documents:
            assert all(id > 3 or id in (2, 3) for id in document.original), "labels are put back in their places"
            assert all((one.kind == "next") == kind.causal for one in document.predictions)


def test_shares_change_over_the_run_by_whole_rows():
    ends = {"schedule": "linear", "start": 1.0, "end": 0.0}, {"schedule": "linear", "start": 0.0, "end": 1.0}
    run = config([{"kind": "clm", "share": ends[0]}, {"kind": "mlm", "share": ends[1], "weight": 2.0}])
    assert [shares_at(run, n) for n in (0, 5, 10)] == [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    assert loss_weights(run, 0, (0.25, 0.75)) == (2.0, 0.75)
    assert predicted_share(run, 5) == pytest.approx(0.5 * 0.3 + 0.5)
    mixture = objective_of(run, VOCABULARY, 5, "train")
    tokens = np.tile([2, *[9] * (SEQ_LEN - 2), 3], (8, 1))
    rows = Rows(tokens, np.arange(24).reshape(8, 3), np.zeros((8, SEQ_LEN), np.uint8))
    quotas = [[(g.objective, g.rows) for g in mixture.with_shares(shares_at(run, n))(rows, 0.3).groups] for n in (0, 1)]
    assert quotas == [[(1, 8)], [(0, 1), (1, 7)]]


def test_a_trial_has_the_shares_with_the_most_predictions_of_the_run():
    rising = {"schedule": "linear", "start": 0.25, "end": 0.75}
    falling = {"schedule": "linear", "start": 0.75, "end": 0.25}
    mixture = made([{"kind": "clm", "share": rising}, {"kind": "mlm", "share": falling}])
    loader = memory_loader([BLOCKS], VOCABULARY, mixture, one_stage(SEQ_LEN, micro=8), rate=0.3)
    ((batch,),) = loader.examples(0, loader.mixture.start())
    assert [(group.objective, group.rows) for group in batch.groups] == [(0, 2), (1, 6)]
    assert mixture.slots(SEQ_LEN) == math.ceil(len(batch.labels) / 8), "as the plan of memory has it"


def test_a_micro_batch_must_hold_whole_shares():
    run = config(THREE, train={"steps": 1, "global_batch_size": 12, "micro_batch_size": 6})
    with pytest.raises(UserError, match=r"of 6 rows cannot be split into objective mlm 25%, mntp 25%, clm 50%; make"):
        BatchStage.of_run(run, 1)
    assert BatchStage.of_run(run.model_copy(update={"objective": "mlm"}), 1)[0].micro == 6


# The encoder

LENGTHS = [24, 9, 12, 3, 10, 14, 24]  # of four rows
GROUPS = (RowGroup(0, View.BIDIRECTIONAL, 1, 2), RowGroup(1, View.CAUSAL, 3, 4))


def encoder(arch: str, layers: int = 4) -> Encoder:
    model = Encoder(shape_of(arch, layers=layers))
    model.initialize(1)
    return model.eval()


@pytest.mark.parametrize("arch", ["bert", "modernbert"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rows_of_two_views_have_the_states_that_each_view_gives_alone(arch, rows):
    tokens, positions, bounds = (stream(LENGTHS)[name] for name in ("tokens", "positions", "cu_seqlens"))
    model = encoder(arch)
    causal = Encoder(dataclasses.replace(model.shape, causal=True))
    causal.load_state_dict(model.state_dict())
    views = ((View.BIDIRECTIONAL, rows), (View.CAUSAL, 4 - rows))
    with torch.no_grad():
        states = model.hidden(tokens, positions, bounds, 24, views=views)
        cut = 24 * rows
        for one, part in ((model, slice(0, cut)), (causal.eval(), slice(cut, 96))):
            inside = bounds[(bounds >= part.start) & (bounds <= part.stop)] - part.start
            alone = one.hidden(tokens[part], positions[part], inside, 24)
            torch.testing.assert_close(states[part], alone, rtol=1e-4, atol=1e-5)
        for changed in range(0, 96, 5):  # what a token reaches: its document, and under a causal view what follows it
            other = tokens.clone()
            other[changed] = 5 + (other[changed] - 4) % 85
            reached = (model.hidden(other, positions, bounds, 24, views=views) != states).any(dim=1)
            document = (torch.bucketize(torch.arange(96), bounds, right=True) - 1).int()
            allowed = document == document[changed]
            if changed >= cut:
                allowed &= torch.arange(96) >= changed
            assert not (reached & ~allowed).any()
            assert reached[changed]


def test_a_compiled_graph_computes_a_mixture(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    weights = torch.rand(6, generator=torch.Generator().manual_seed(3))
    batch = stream(LENGTHS) | {"weights": weights, "groups": GROUPS}
    found = []
    for compiled in (False, True):
        model = encoder("modernbert", layers=2)  # a global and a local one
        if compiled:
            model.compile_graph(shapes=1)
        prediction = model(**batch, seq_len=24)
        prediction.loss.backward()
        found.append([prediction.loss, prediction.cross_entropy, *(p.grad for p in model.parameters())])
    for plain, graph in zip(*found, strict=True):
        torch.testing.assert_close(graph, plain, rtol=1e-4, atol=1e-6)
    assert found[0][1].shape == (2,)
    torch.testing.assert_close(found[0][1].sum(), found[0][0])
