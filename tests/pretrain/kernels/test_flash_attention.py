"""Which version of flash attention is installed, and how torch is told to use it.

The packages of versions 3 and 4 need GPUs. Here a small module stands for them: it has the operations that torch looks
for, and torch's own registry takes it. tests/gpu compares their results.
"""

import os
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from pretrain.kernels import FlashAttention
from tests.support.flash_attention_3 import INFERENCE, encoder_with_version_3
from tests.support.forked import ROOT, Completed, run_forked
from tests.support.triton_process import needs_triton

HOPPER, BLACKWELL, AMPERE = 9, 10, 8
OPERATORS = "from tests.support.flash_attention_3 import register; register({!r})"


@pytest.mark.parametrize(
    ("packages", "generation", "found"),
    [
        ([], HOPPER, FlashAttention()),
        (["flash_attn_3"], HOPPER, FlashAttention(3, "flash_attn_3 3.1.0")),
        (["flash_attn_3"], BLACKWELL, FlashAttention()),
        (["flash_attn_4"], BLACKWELL, FlashAttention(4, "flash-attn-4 3.1.0")),
        (["flash_attn_4"], HOPPER, FlashAttention(4, "flash-attn-4 3.1.0")),
        (["flash_attn_3", "flash_attn_4"], HOPPER, FlashAttention(3, "flash_attn_3 3.1.0")),
        (["flash_attn_3", "flash_attn_4"], AMPERE, FlashAttention()),
        (["flash_attn_3", "flash_attn_4"], None, FlashAttention()),
    ],
)
def test_the_installed_version_for_a_gpu(tmp_path, monkeypatch, packages, generation, found):
    for name in packages:
        metadata = tmp_path / f"{name}-3.1.0.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert FlashAttention.installed(generation) == found
    assert FlashAttention.installed(generation, 2) == FlashAttention()
    wanted = FlashAttention.installed(HOPPER, 4).version  # a setting goes before the order of `auto`
    assert wanted == (4 if "flash_attn_4" in packages else 2)


def test_a_build_from_source_is_found_by_its_module(tmp_path, monkeypatch):
    """In a folder on PYTHONPATH, without metadata; it is not imported."""
    (tmp_path / "flash_attn_interface.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    assert FlashAttention.installed(HOPPER) == FlashAttention(3, "flash_attn_3 of unknown version")
    assert FlashAttention.installed(BLACKWELL) == FlashAttention()


def test_a_version_that_is_missing_is_refused():
    FlashAttention(3, "flash_attn_3 3.1.0").require(3)
    for wanted in ("auto", 2):
        FlashAttention().require(wanted)
    with pytest.raises(
        UserError, match=r"^train\.flash_attention is 3, which needs Hopper GPUs and the package flash_"
    ):
        FlashAttention().require(3)
    with pytest.raises(UserError, match="needs Hopper or Blackwell GPUs"):
        FlashAttention(3).require(4)


def switched(folder: Path) -> Completed:
    """Use version 2, 3, 3 and 2 for a model, in a new process with the modules of a folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    return run_forked(["tests.support.flash_attention_3", str(folder)], environment, ROOT, timeout=120)


def test_torch_is_told_to_use_a_version(tmp_path):
    (tmp_path / "flash_attn_interface.py").write_text(OPERATORS.format("computed"))
    done = switched(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None", "FA3", "FA3", "None"]


@pytest.mark.parametrize("content", [None, "raise ImportError('libcudart.so.12: not found')", "x = 1"])
def test_a_package_that_cannot_be_loaded_is_a_clear_error(tmp_path, content):
    if content:
        (tmp_path / "flash_attn_interface.py").write_text(content)
    done = switched(tmp_path)
    assert done.returncode
    assert "UserError: FlashAttention 3 cannot be loaded (" in done.stderr
    assert "install flash-attn-3 from https://download.pytorch.org/whl/cu128 (or cu126" in done.stderr


@pytest.mark.parametrize(("backward", "said"), [("raises", INFERENCE), ("missing", "flash_attn_3::bwd")])
def test_a_build_without_a_backward_pass_is_refused(tmp_path, backward, said):
    """As packages for inference are; they register the operator all the same. torch then computes with version 2."""
    (tmp_path / "flash_attn_interface.py").write_text(OPERATORS.format(backward))
    done = switched(tmp_path)
    assert "UserError: FlashAttention 3 computes no gradients (" in done.stderr
    assert said in done.stderr
    assert "); install flash-attn-3 from https://download.pytorch.org/whl/cu128 (or cu126" in done.stderr
    assert done.stdout.split() == ["None", "None"]


@needs_triton
@pytest.mark.parametrize("arch", ["bert", "modernbert", "eurobert"])
def test_gradients_of_version_3_are_one_matrix(interpreter, arch):
    """The last layer has a matrix for queries, and one for the others. Gradients of shared heads are added up first."""
    errors, merged = interpreter(encoder_with_version_3, arch)
    assert max(errors.values()) < 1e-5
    assert (len(merged), sum(merged)) == (5, 1 if arch == "eurobert" else 5)
