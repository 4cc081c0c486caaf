"""Merging models: weights, the mean, the model card, and models that do not fit together."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, EsmConfig, EsmForMaskedLM, PreTrainedModel

from data_prep.common.errors import UserError
from pretrain.config import View
from pretrain.export import load_tokenizer, merge_models, merge_parts, merge_weights
from pretrain.run import RunFolder, step_name
from tests.support.finetuning import WORDS, tiny_tokenizer

SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 32}
CARD = "# books\n\n| | |\n|---|---|\n| steps | 9 of 9 |\n| weights | of the last step |\n| seed | 7 |\n"


def saved(folder: Path, seed: int = 0, model: PreTrainedModel | None = None, **sizes: int) -> Path:
    torch.manual_seed(seed)
    (model or BertForMaskedLM(BertConfig(**SIZES | sizes))).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def merged(folders: list[Path], weights: list[float]) -> dict[str, torch.Tensor]:
    """The weights of a merge, written beside its first model."""
    out = folders[0].with_name("merge")
    merge_models(folders, weights, "a test", out, lambda *_: None)
    return load_file(out / "model.safetensors")


def test_weights_are_those_of_the_models_in_order(tmp_path):
    """Weights in bf16 are averaged in more than fp32, and tied weights once."""
    folders = [saved(tmp_path / str(seed), seed, hidden_dropout_prob=0.1 * seed) for seed in range(3)]  # may differ
    for folder in folders:
        halves = {name: value.bfloat16() for name, value in load_file(folder / "model.safetensors").items()}
        save_file(halves, folder / "model.safetensors", {"format": "pt"})
    parts = [load_file(folder / "model.safetensors") for folder in folders]
    averaged = merged(folders, [0.7, 0.2, 0.1])
    assert averaged.keys() == parts[0].keys()
    for name, value in averaged.items():
        wanted = sum(weight * part[name].double() for weight, part in zip((0.7, 0.2, 0.1), parts, strict=True))
        assert torch.equal(value, wanted.float()), name
    assert (tmp_path / "merge/config.json").read_bytes() == (folders[0] / "config.json").read_bytes()
    assert load_tokenizer(tmp_path / "merge").get_vocab() == load_tokenizer(folders[0]).get_vocab()


def test_the_card_is_that_of_the_last_model_with_the_parts(tmp_path):
    folders = [saved(tmp_path / name / "model") for name in "ab"]
    (folders[1] / "README.md").write_text(CARD)
    merge_models(folders, [0.25, 0.75], "a merge of 2 models (ema)", tmp_path / "out", lambda *_: None)
    text = (tmp_path / "out/README.md").read_text()
    assert text.startswith(CARD.replace("of the last step", "a merge of 2 models (ema)"))
    assert f"| {folders[0]} | 0.25 |\n| {folders[1]} | 0.75 |\n" in text
    merge_models(folders[::-1], [0.25, 0.75], "a merge", tmp_path / "plain", lambda *_: None)
    assert (tmp_path / "plain/README.md").read_text().startswith("# plain\n")


@pytest.mark.parametrize(
    "other, what",
    [
        ({"hidden_size": 32}, "hidden_size is 16 and 32"),
        ({"vocab_size": 30}, f"vocab_size is {len(WORDS)} and 30"),
        ({"model": EsmForMaskedLM(EsmConfig(**SIZES, pad_token_id=0))}, "model_type is bert and esm"),
    ],
)
def test_another_architecture_is_refused(tmp_path, other, what):
    folders = [saved(tmp_path / "a"), saved(tmp_path / "b", **other)]
    with pytest.raises(UserError, match=rf"a and .*b cannot be merged: {what}"):
        merged(folders, [0.5, 0.5])
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_another_tokenizer_is_refused(tmp_path):
    folders = [saved(tmp_path / name) for name in "ab"]
    file = folders[1] / "tokenizer.json"
    values = json.loads(file.read_text())
    values["model"]["vocab"] |= {"ship": values["model"]["vocab"]["old"], "old": values["model"]["vocab"]["ship"]}
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"a and .*b cannot be merged: their tokenizers differ"):
        merged(folders, [0.5, 0.5])


def test_another_buffer_is_refused(tmp_path):
    config = EsmConfig(**SIZES, pad_token_id=0, position_embedding_type="rotary")
    folders = [saved(tmp_path / name, model=EsmForMaskedLM(config)) for name in "ab"]
    assert any("inv_freq" in name for name in merged(folders, [0.5, 0.5]))
    weights = load_file(folders[1] / "model.safetensors")
    name = next(name for name in weights if "inv_freq" in name)
    save_file(weights | {name: 2 * weights[name]}, folders[1] / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"cannot be merged: .*inv_freq, which is not trained, differs"):
        merged(folders, [0.5, 0.5])


@pytest.mark.parametrize(
    ("kind", "steps", "wanted"),
    [
        ("uniform", [1, 2, 9, None], [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("ema", [5, 6, 7], [1 / 7, 2 / 7, 4 / 7]),
        ("linear-decay", [4, 6, 10], [1 / 6, 1 / 2, 1 / 3]),  # updates get 5/6 up to step 6, then 1/3 on average
        *(("linear-decay", steps, [1 / 4, 1 / 2, 1 / 4]) for steps in ([None] * 3, [4, None, 9], [9, 8, 1], [4, 4, 9])),
    ],
)
def test_weights_of_models(kind, steps, wanted):
    """Models without steps in order are evenly spaced."""
    np.testing.assert_allclose(merge_weights(kind, steps, 0.5), wanted, rtol=1e-12)


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with the folders of checkpoints, as far as names go."""
    folder = RunFolder(tmp_path / "a run@home")
    for name in (*map(step_name, (200, 400, 600)), "step-00000300.aside-1", "step-00000500.tmp"):
        (folder.checkpoints / name).mkdir(parents=True)
    folder.journal.touch()
    return folder.path


@pytest.mark.parametrize(
    "name, said",
    [
        ("@201..400", "has 1 checkpoint from step 201 to 400, and a merge needs two. It keeps steps 200, 400, 600;"),
        ("@400..200", "has no checkpoint from step 400 to 200"),
        ("", "is a run folder, not a Hugging Face model folder or a checkpoint of a run"),
        ("/checkpoints/step-00000300.aside-1", "not a Hugging Face model folder or a checkpoint"),
        ("/checkpoints/step-00000700", "does not exist"),
        ("s@200..400", "does not exist"),
    ],
)
def test_what_cannot_be_merged_is_said(run, name, said):
    with pytest.raises(UserError, match=said):
        merge_parts(f"{run}{name}", None)


def test_a_model_has_one_view(tmp_path):
    saved(tmp_path / "step-00000700")
    (part,) = merge_parts(str(tmp_path / "step-00000700"), None)
    assert (part.run, part.step) == (None, 700)
    with pytest.raises(UserError, match="is a model with one view"):
        merge_parts(str(tmp_path / "step-00000700"), View.CAUSAL)
