"""A committed checkpoint survives a power failure: files, folders and names are on disk in the right order."""

import shutil

import pytest

from pretrain import checkpoint
from pretrain.checkpoint import remote_copies
from pretrain.config import CheckpointConfig
from tests.support import checkpoints
from tests.support.durable import recorded

pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def folder(tmp_path):
    """RUN/checkpoints."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_is_durable(folder, asynchronous):
    with recorded(folder) as writes:
        used = checkpoints.saver(folder, asynchronous=asynchronous)
        used.begin(1, {})
        used.finish()
        used.close()
    assert checkpoint.committed(folder) == [(1, folder / "step-00000001")]
    assert writes.problems() == []


def test_a_fetched_checkpoint_is_durable(folder, tmp_path):
    original = checkpoints.make_checkpoint(folder, 1)
    url = f"file://{tmp_path}/copies"
    copies = remote_copies.RemoteCopies(CheckpointConfig(remote=url), 0)
    copies.push(original)
    copies.close()
    shutil.rmtree(original)
    with recorded(folder) as writes:
        assert remote_copies.fetch_newest(url, folder, print) == original
    assert writes.problems() == []


def test_what_is_set_aside_stays_aside(folder):
    """After a power failure, too, an abandoned checkpoint must not count again."""
    path = checkpoints.make_checkpoint(folder, 2)
    with recorded(folder) as writes:
        checkpoint.set_aside(folder, 1)
    assert not path.exists()
    assert writes.problems(lambda path: path.parent != folder) == []
