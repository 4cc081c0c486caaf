"""A hostile pickle in place of a checkpoint's file: its code does not run."""

import os
import pickle
from pathlib import Path

import pytest
import torch
import xxhash
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from data_prep.common.errors import UserError
from pretrain import checkpoint
from pretrain.engine import load_weights
from pretrain.engine.resharding import gather, load_file
from pretrain.model import Encoder, EncoderShape
from tests.support.checkpoints import make_checkpoint

NAME = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
LAYOUT = {"processes": 1, "zero.stage": 1}
SHAPE = EncoderShape(vocab_size=8, layers=1, hidden=4, heads=1, intermediate=4, max_positions=4, pad_id=0)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


class Attribute:
    """Is pickled as getattr(owner, name), as Python 3.11.0 to 3.11.3 pickles the member of an enumeration."""

    def __init__(self, owner: object, name: str):
        self.owner, self.name = owner, name

    def __reduce__(self):
        return getattr, (self.owner, self.name)


@pytest.fixture
def hostile(tmp_path):
    """A re-sealed checkpoint with the payload next to tensors, and the folder that the payload creates."""
    path, marker = make_checkpoint(tmp_path, 1), tmp_path / "ran"
    file = path / "deepspeed" / NAME
    torch.save({"optimizer_state_dict": {"weights": torch.zeros(3), "x": Payload(marker)}}, file)
    assert "differs from its checksum" in (checkpoint.verify(path) or ""), "before it is sealed again"
    files = checkpoint.read(path).files
    entry = {"bytes": file.stat().st_size, "xxh3_128": xxhash.xxh3_128_hexdigest(file.read_bytes())}
    checkpoint.Checkpoint(path, 1, {"layout": LAYOUT}, files | {f"deepspeed/{NAME}": entry}).write()
    assert checkpoint.verify(path) is None
    return path / "deepspeed", marker


def test_a_sealed_hostile_file_runs_nothing(hostile):
    folder, marker = hostile
    for load in (
        lambda: load_file(folder / NAME),
        lambda: gather(folder, LAYOUT, ["a"], []),
        lambda: load_weights(checkpoint.read(folder.parent), Encoder(SHAPE)),
    ):
        with pytest.raises(UserError, match="is not loaded, as it could run code: it asks for") as caught:
            load()
        assert str(folder / NAME) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not marker.exists()
    torch.load(folder / NAME, weights_only=False)
    assert marker.exists(), "it would have run"


def test_a_bare_pickle_runs_nothing(tmp_path):
    path, marker = tmp_path / "x.pt", tmp_path / "ran"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(UserError, match="is not loaded"):
        load_file(path)
    assert not marker.exists()


def test_nothing_is_unpickled_otherwise():
    sources = list(Path(__file__).parents[3].glob("pretrain/**/*.py"))
    assert [path.name for path in sources if "weights_only=False" in path.read_text()] == []
    assert [path.name for path in sources if "torch.load(" in path.read_text()] == ["resharding.py"]


def test_of_attributes_only_a_stage_is_loaded(tmp_path):
    torch.save({"stage": Attribute(ZeroStageEnum, "gradients")}, tmp_path / NAME)
    assert load_file(tmp_path / NAME) == {"stage": ZeroStageEnum.gradients}
    for other in (Attribute(LossScaler, "backward"), Attribute(ZeroStageEnum, "__class__")):
        torch.save({"stage": other}, tmp_path / NAME)
        with pytest.raises(UserError, match=r"is not (loaded, as it could run code: it asks for getattr|a file of a)"):
            load_file(tmp_path / NAME)
