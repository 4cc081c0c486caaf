"""Exports of tiny trained models, what they must answer, and spoiled copies of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from tests.support import runs, text_data

TEXTS = ["the captain saw the red ship.", "a sailor", "my sister forgot her letter. the king found a silver coin."]
MODELS = ("BERT", "RoBERTa", "ModernBERT")
_SIZE = {"layers": 2, "hidden": 32, "heads": 2}
_STEPS = 80


@dataclass(frozen=True)
class Reference:
    """What an export must answer: results of `AutoModelForMaskedLM` for one text at a time, without padding."""

    folder: Path

    @cached_property
    def masked_text(self) -> str:
        return TEXTS[0].replace("ship", self.tokenizer.mask_token)

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def model(self) -> Any:
        return AutoModelForMaskedLM.from_pretrained(self.folder).eval()

    @torch.no_grad()
    def logits(self, text: str) -> Tensor:
        """[tokens, vocabulary]"""
        return self.model(**self.tokenizer(text, return_tensors="pt")).logits[0]

    @torch.no_grad()
    def states(self, text: str) -> Tensor:
        """States of the last layer [tokens, hidden]."""
        return self.model.base_model(**self.tokenizer(text, return_tensors="pt"))[0][0]

    @cached_property
    def top_token(self) -> str:
        """The likeliest token for the mask of `masked_text`, as text."""
        ids = self.tokenizer(self.masked_text)["input_ids"]
        place = ids.index(self.tokenizer.mask_token_id)
        return self.tokenizer.decode([int(self.logits(self.masked_text)[place].argmax())]).strip()

    @staticmethod
    def require(wanted: Callable[[str], Tensor], found: Tensor, mask: Tensor) -> None:
        """Raise AssertionError unless values of the padded TEXTS are those of each text alone.

        Args:
            wanted: the method `logits` or `states` of a reference.
            found: [texts, L, vocabulary or hidden].
            mask: 1 for a token, 0 for padding [texts, L].
        """
        for text, row, kept in zip(TEXTS, found, mask.bool(), strict=True):
            torch.testing.assert_close(row[kept], wanted(text), atol=1e-4, rtol=0)


def train_models(folder: Path) -> dict[str, Reference]:
    """Train and export each of MODELS with the command line."""
    data = {}
    for kind in ("wordpiece", "bpe"):
        text = text_data.corpus(folder / f"{kind}.jsonl", 300)
        data[kind] = folder / f"data-{kind}"
        runs.succeed("tokenizer", "train", "--input", text, "--kind", kind, "--vocab-size", "300",
                     "--out", folder / kind)  # fmt: skip
        runs.succeed("prep", "run", "--input", text, "--tokenizer", folder / kind, "--out", data[kind],
                     "--valid-fraction", "0.1")  # fmt: skip
    references = {}
    for number, name in enumerate(MODELS):
        run = folder / f"run-{number}"
        settings = {"train__steps": _STEPS, "checkpoint__every_steps": _STEPS, "eval__every_steps": _STEPS}
        values = runs.tiny_config(data["bpe" if name == "RoBERTa" else "wordpiece"], run, **settings)
        values |= {"model": {"arch": name.lower(), "size": _SIZE}, "optim": {"lr": 3e-3}}
        values["data"]["seq_len"] = 64
        path = runs.write_config(run.with_suffix(".yaml"), values)
        runs.succeed("train", path, "--procs", "1")
        runs.succeed("export", run, "--out", folder / f"model-{number}")
        references[name] = Reference(folder / f"model-{number}")
    return references


def _exchange_weights(folder: Path) -> None:
    """Exchange the attention weights of the two layers."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    first, second, *_ = sorted(name for name in weights if name.endswith(("self.value.weight", "attn.Wqkv.weight")))
    weights[first], weights[second] = weights[second], weights[first]
    save_file(weights, path, metadata={"format": "pt"})


def _remove_pad(folder: Path) -> None:
    """Remove the pad token from the tokenizer and its id from the config."""
    _edit(folder / "config.json", "pad_token_id", None)
    _edit(folder / "tokenizer_config.json", "pad_token", None)


def _change_mask(folder: Path) -> None:
    """Let the tokenizer take another token for the mask."""
    path = folder / "tokenizer_config.json"
    _edit(path, "mask_token", json.loads(path.read_text())["unk_token"])


def _edit(path: Path, name: str, value: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


SPOILED = {
    "weights exchanged": (_exchange_weights, "not close|Not equal"),
    "no pad token": (_remove_pad, "does not have a padding token"),
    "wrong mask token": (_change_mask, "No mask_token"),
}
"""For each fault, a function that puts it into an export, and what the error of a check says (regular expression)."""


def spoil(export: Path, how: str, out: Path) -> Path:
    """A copy of an export with one of the faults of SPOILED."""
    shutil.copytree(export, out)
    SPOILED[how][0](out)
    return out
