"""What Maskwright does in DeepSpeed's place."""

from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from pretrain.clipping import Clipping
from pretrain.extensions import build_extension


@pytest.mark.parametrize(
    ("norm", "scale", "largest"), [(3.0, 1.0, 0.5), (0.2, 1.0, 0.5), (9.0, 8.0, 1.0), (9.0, 4.0, 0.0)]
)
def test_clipping_has_the_bits_of_deepspeeds(norm, scale, largest):
    optimizer = SimpleNamespace(loss_scale=scale, clip_grad=largest, device=torch.device("cpu"))
    ours, theirs = (torch.linspace(-2, 3, 1001) for _ in range(2))
    Clipping(optimizer, fp16=True)
    optimizer.unscale_and_clip_grads([ours], torch.tensor(norm))
    DeepSpeedZeroOptimizer.unscale_and_clip_grads(optimizer, [theirs], torch.tensor(norm))
    assert torch.equal(ours, theirs)


def test_what_a_killed_build_has_left_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    left = tmp_path / "extension" / "lock"
    left.parent.mkdir()
    left.touch()
    built = []
    build_extension(
        SimpleNamespace(name="extension", is_compatible=lambda verbose: True, load=lambda: built.append(left.exists()))
    )
    assert built == [False]
