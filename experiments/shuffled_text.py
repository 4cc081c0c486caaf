"""Data sets of text with shuffled words: the words of each document as n-grams in another order.

As Sinha et al., "Masked Language Modeling and the Distributional Hypothesis: Order Word Matters Pre-training for
Little", EMNLP 2021 (arXiv:2104.06644), but within documents instead of sentences.
"""

import argparse
import json
from collections.abc import Iterator, Sequence

import numpy as np

from data_prep.format import Dataset
from data_prep.tokenizer import Spelling
from experiments.common import maskwright


def prepare_shuffled(args: argparse.Namespace, data: str, n: int, name: str) -> str:
    """Prepare shuffled/NAME in --work: the documents of a data set with shuffled n-grams of words, unless it exists.

    Held-out documents are a separate data set, and stay separate in this way. Returns the path in --work.
    """
    out, text = args.work / "shuffled" / name, args.work / f"shuffled/{name}.jsonl"
    if not (out / "manifest.json").exists():
        dataset = Dataset(args.work / data)
        text.parent.mkdir(exist_ok=True)
        with text.open("w", encoding="utf-8") as file:
            for number, document in enumerate(documents(dataset)):
                file.write(json.dumps({"text": " ".join(shuffled(document.split(), n, number))}) + "\n")
        maskwright(args, "prep", "run", "--input", text, "--tokenizer", dataset.tokenizer_path, "--out", out)
    return f"shuffled/{name}"


def documents(dataset: Dataset) -> Iterator[str]:
    """The text of each document, in order."""
    spelling = Spelling.open(dataset.tokenizer_path)
    for block in range(dataset.n_blocks):
        tokens, ends = dataset.tokens(block), dataset.document_ends(block)
        for document in np.split(tokens, ends[:-1]):
            yield spelling.text(document.tolist())


def shuffled(words: Sequence[str], n: int, key: int) -> list[str]:
    """The words, with their n-grams in a random order: each order is equally likely. The last may be shorter."""
    ngrams = [words[first : first + n] for first in range(0, len(words), n)]
    order = np.random.default_rng(key).permutation(len(ngrams))
    return [word for number in order for word in ngrams[number]]
