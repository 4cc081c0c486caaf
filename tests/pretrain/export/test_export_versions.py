"""Exports are the same model in transformers 4 and 5: they load by name, with the same token ids and logits."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer, BertTokenizer, EuroBertConfig, ModernBertConfig

from data_prep.format import TokenizerInfo
from data_prep.tokenizer import describe_tokenizer, train_tokenizer
from pretrain.export.hugging_face_export import write_model
from pretrain.export.transformers_folder import needs_version_5
from pretrain.model import EncoderShape, build, exported, longest_text
from pretrain.model.padded_model import padded_config
from tests.support.forked import ROOT
from tests.support.read_exports import read
from tests.support.text_data import sentences
from tests.support.transformers_4 import transformers_4

SIZE = {"layers": 4, "hidden": 32, "heads": 2, "intermediate": 48, "max_positions": 100, "init_std": 0.2}
MODERN = {"arch": "modernbert", "window": 16, "rope_theta": 10_000.0, "local_rope_theta": 500.0}
SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 48}
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
}
NATIVE = {
    "bert": {"arch": "bert"},
    "roberta": {"arch": "roberta"},
    "modernbert": MODERN,
    "modernbert, every second layer": MODERN | {"global_every": 2},
    "modernbert, longer than its rows": MODERN | {"max_positions": 20},
    "esm": {"arch": "esm", "rope_theta": 10_000.0},
    "causal bert": {"arch": "bert", "causal": True},
    "causal modernbert": MODERN | {"causal": True, "local_rope_theta": 10_000.0},
}
ONLY_5 = {
    "causal modernbert of two rotary bases": MODERN | {"causal": True},
    "esm of another rotary base": {"arch": "esm", "rope_theta": 50.0},
}
AUTO = {
    "electra": SMALL | {"embedding_size": 16, "initializer_range": 0.2},
    "modernbert": SMALL | {"rope_parameters": ROPES, "local_attention": 16, "initializer_range": 0.2},
}
TEXT = " ".join(sentences(12, seed=5))


def tokenizers(top: Path) -> dict[str, TokenizerInfo]:
    """Tokenizers in folders of `top`: trained ones, and two that transformers 5 saved."""
    for kind in ("wordpiece", "bpe"):
        train_tokenizer(sentences(200), kind, 300, top / kind)
    trained = AutoTokenizer.from_pretrained(top / "wordpiece", additional_special_tokens=["<user>"])
    trained.save_pretrained(top / "saved by version 5")
    BertTokenizer(vocab=trained.get_vocab()).save_pretrained(top / "BertTokenizer")
    return {folder.name: describe_tokenizer(folder) for folder in top.iterdir()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Exports with random weights."""
    top = tmp_path_factory.mktemp("exports")
    infos = tokenizers(top)
    found = {}
    for name, options in (NATIVE | ONLY_5).items():
        kind = {"roberta": "bpe", "causal bert": "BertTokenizer"}.get(name, "wordpiece")
        info = infos[kind]
        mask = {"mask_id": info.special_ids["mask"]} if name.startswith("esm") else {}
        sizes = SIZE | {"vocab_size": info.vocab_size, "pad_id": info.special_ids["pad"]} | mask
        shape = EncoderShape(**sizes | options)
        found[name] = (asdict(shape), top / kind)
    for kind, options in AUTO.items():
        config = padded_config(options | {"model_type": kind}, 100, infos["saved by version 5"])
        found[f"auto {kind}"] = ({"arch": "auto", "config": config}, top / "saved by version 5")
    for name, (description, tokenizer) in found.items():
        model = exported(build(description, seed=3).state_dict(), description)
        longest = None if "modernbert" in name else longest_text(model)
        (top / name).mkdir()
        write_model(model, tokenizer, longest, top / name)
    return {name: top / name for name in found}


@pytest.fixture(scope="module")
def in_version_4(folders, tmp_path_factory) -> dict[str, np.ndarray]:
    """Results of transformers 4 for each export, by folder and name."""
    out = tmp_path_factory.mktemp("version 4") / "found.npz"
    environment = os.environ | {"PYTHONPATH": str(transformers_4()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.read_exports", out, TEXT, *folders.values()]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return dict(np.load(out))


@pytest.mark.parametrize("name", [*NATIVE, *(f"auto {kind}" for kind in AUTO)])
def test_an_export_is_the_same_model_in_both_versions(name, folders, in_version_4):
    assert not needs_version_5(AutoConfig.from_pretrained(folders[name]))
    ours = read(folders[name], TEXT)
    assert ours["ids"].shape == (1, 100)
    assert np.ptp(ours["logits"]) > 1, "equal logits would show no difference"
    for part, wanted in ours.items():
        found = in_version_4[f"{folders[name]} {part}"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5, err_msg=part, strict=True)


@pytest.mark.parametrize("name", ONLY_5)
def test_what_version_4_cannot_compute_is_known(name, folders, in_version_4):
    assert needs_version_5(AutoConfig.from_pretrained(folders[name]))
    difference = read(folders[name], TEXT)["logits"] - in_version_4[f"{folders[name]} logits"]
    assert np.abs(difference).max() > 0.01


@pytest.mark.parametrize(
    "kinds, wanted",
    [("fssf", False), ("fsss", False), ("ffff", False), ("sfsf", True), ("ffss", True), ("fssfsf", True)],
)
def test_layers_that_version_4_cannot_have(kinds, wanted):
    layers = [{"f": "full_attention", "s": "sliding_attention"}[kind] for kind in kinds]
    assert needs_version_5(ModernBertConfig(num_hidden_layers=len(kinds), layer_types=layers)) == wanted


def test_version_4_has_no_eurobert():
    assert needs_version_5(EuroBertConfig())
