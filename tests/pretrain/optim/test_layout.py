"""Weights and optimizer state in a checkpoint's files, for any cut of the pieces."""

import pytest
import torch

from data_prep.common.errors import UserError
from pretrain.engine.resharding import gather
from pretrain.optim import Piece

SIZES = {"a": (4, 3), "b": (5,), "c": (1,)}
LAYOUT = {"zero.stage": 0, "processes": 1}


def whole(offset: float) -> dict[str, torch.Tensor]:
    sizes = {name: torch.Size(shape).numel() for name, shape in SIZES.items()}
    return {name: offset + 100 * i + torch.arange(sizes[name]).float() for i, name in enumerate(SIZES)}


@pytest.fixture
def folder(tmp_path):
    """The files of one rank under ZeRO 0."""
    weights, first, second = whole(0), whole(1000), whole(2000)
    state = {
        i: {"step": torch.tensor(7.0), "exp_avg": first[n].view(SIZES[n]), "exp_avg_sq": second[n].view(SIZES[n])}
        for i, n in enumerate(SIZES)
    }
    module = {name: values.view(SIZES[name]) for name, values in weights.items()}
    torch.save({"module": module, "optimizer": {"state": state}}, tmp_path / "mp_rank_00_model_states.pt")
    return tmp_path


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 30])
def test_cut_into_any_number_of_parts(folder, ranks):
    """All parameters back to back, padded, and cut evenly, as ZeRO 1 does; with 30 ranks some hold padding alone."""
    places = [(name, index) for name, values in whole(0).items() for index in range(len(values))]
    share = -(-len(places) // ranks)
    wanted = []
    for rank in range(ranks):
        held = places[rank * share : (rank + 1) * share]
        wanted.append((share, [Piece(name, index, 1, offset) for offset, (name, index) in enumerate(held)]))
    flats = gather(folder, LAYOUT, list(SIZES), wanted)
    for offset, tensors in (
        (0, [flat.weights for flat in flats]),
        (1000, [flat.state["exp_avg"] for flat in flats]),
        (2000, [flat.state["exp_avg_sq"] for flat in flats]),
    ):
        assert torch.equal(torch.cat(tensors)[: len(places)], torch.cat([*whole(offset).values()]))
        assert not torch.cat(tensors)[len(places) :].any()
    assert all(flat.state["step"] == 7 for flat in flats)


def test_a_piece_goes_where_it_is_wanted(folder):
    (flat,) = gather(folder, LAYOUT, list(SIZES), [(10, [Piece("a", 5, 4, 1), Piece("c", 0, 1, 7)])])
    assert flat.weights.tolist() == [0, 5, 6, 7, 8, 0, 0, 200, 0, 0]


@pytest.mark.parametrize("wanted", [Piece("a", 10, 3, 0), Piece("d", 0, 1, 0)])
def test_what_is_not_there_is_named(folder, wanted):
    with pytest.raises(UserError, match=f"cannot be split for another.*of parameter {wanted.name} are nowhere"):
        gather(folder, LAYOUT, list(SIZES), [(3, [wanted])])


@pytest.mark.parametrize("stage", [1, 3])
def test_files_of_another_layout_are_refused(folder, stage):
    with pytest.raises(UserError, match=f"its files are not the files of 1 processes with ZeRO {stage}"):
        gather(folder, {"zero.stage": stage, "processes": 1}, list(SIZES), [])
