"""A tokenizer and data sets made from generated sentences, through the command line."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from tests.support.runs import succeed

SUBJECTS = ["the captain", "a sailor", "the old cook", "my sister", "the king", "a stranger", "the doctor"]
VERBS = ["saw", "followed", "painted", "forgot", "carried", "found", "feared"]
OBJECTS = ["the red ship", "a silver coin", "the long road", "her letter", "an empty house", "the cold river"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Documents of one to five sentences."""
    rng = np.random.default_rng(seed)

    def sentence() -> str:
        return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}."

    return [" ".join(sentence() for _ in range(int(rng.integers(1, 6)))) for _ in range(count)]


def corpus(path: Path, count: int, seed: int = 0) -> Path:
    """A jsonl file of documents."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(count, seed)))
    return path


def train_tokenizer(text: Path, out: Path, vocab_size: int = 150) -> Path:
    succeed("tokenizer", "train", "--input", text, "--vocab-size", str(vocab_size), "--out", out)
    return out


def text_data(folder: Path) -> Path:
    """folder/data with train and valid; folder also gets text.jsonl and the tokenizer tok. Made once a process."""
    shutil.copytree(_prepared(), folder, dirs_exist_ok=True)
    return folder / "data"


@functools.cache
def _prepared() -> Path:
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    folder = Path(made.name)
    text = corpus(folder / "text.jsonl", 500)
    tokenizer = train_tokenizer(text, folder / "tok")
    out = folder / "data"
    succeed("prep", "run", "--input", text, "--tokenizer", tokenizer, "--out", out, "--valid-fraction", "0.1")
    return folder
