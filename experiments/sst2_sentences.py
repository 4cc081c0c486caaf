"""SST-2 for books.py: hold out sentences of its training file, and find which sentences models label correctly."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data_prep.common.files import write_file
from evaluation.finetuning.example_files import read_table
from evaluation.finetuning.heads import Example
from evaluation.finetuning.label_tasks import find_columns, naive_bayes

Row = tuple[str, str]
Text = tuple[str, ...]
NAIVE_BAYES = "naive Bayes"
_BATCH = 64
_LONGEST = 128  # tokens, the default of `maskwright finetune`


def split(rows: Sequence[Row], count: int, folds: int, seed: int = 0) -> list[tuple[list[Row], list[Row]]]:
    """(training rows, held-out rows) of rows (text, label) of SST-2, whose training file also has phrases of sentences.

    Whole sentences are texts that are part of no other text. First `count` of them are held out, then each of `folds`
    equal parts of the others; no sentence is held out twice. The training rows contain no part of a held-out sentence.
    """
    texts = {_words(text) for text, _ in rows}
    inner = {part for text in texts for part in _parts(text) if part != text}
    whole, draw = sorted(texts - inner), random.Random(seed)
    first = draw.sample(whole, count)
    others = sorted({*whole}.difference(first))
    draw.shuffle(others)
    return [_without(rows, set(chosen)) for chosen in (first, *(others[number::folds] for number in range(folds)))]


def _without(rows: Sequence[Row], chosen: set[Text]) -> tuple[list[Row], list[Row]]:
    parts = {part for text in chosen for part in _parts(text)}
    return ([row for row in rows if _words(row[0]) not in parts], [row for row in rows if _words(row[0]) in chosen])


def _words(text: str) -> Text:
    return tuple(text.split())


def _parts(text: Text) -> Iterator[Text]:
    return (text[first:last] for first in range(len(text)) for last in range(first + 1, len(text) + 1))


def write_parts(path: Path, count: int, folders: Sequence[Path]) -> list[dict[str, str]]:
    """Write the parts of `split` of a training file as FOLDER/train.tsv and FOLDER/valid.tsv, unless they exist.

    Returns the paths of "train" and "valid" of each part.
    """
    parts = [{name: folder / f"{name}.tsv" for name in ("train", "valid")} for folder in folders]
    if not all(file.exists() for files in parts for file in files.values()):
        for files, tables in zip(parts, split(read_rows(path), count, len(folders) - 1), strict=True):
            for file, rows in zip(files.values(), tables, strict=True):
                file.parent.mkdir(exist_ok=True)
                lines = (f"{text}\t{label}\n" for text, label in [("sentence", "label"), *rows])
                write_file(file, "".join(lines).encode())
    return [{name: str(file) for name, file in files.items()} for files in parts]


def correct_labels(folder: Path, models: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Whether each sentence of folder/valid.tsv gets its label: bool [sentences] by model, and for naive Bayes.

    Args:
        models: names of folders in `folder`, each a model fine-tuned on folder/train.tsv.
    """
    tables = {name: read_rows(folder / f"{name}.tsv") for name in ("train", "valid")}
    texts, labels = map(list, zip(*tables["valid"], strict=True))
    correct = {name: np.array(_labels(folder / name, texts)) == np.array(labels) for name in models}
    tokenizer = AutoTokenizer.from_pretrained(folder / models[0])
    train, valid = (_examples(tokenizer, rows) for rows in tables.values())
    predicted = naive_bayes(train, [int(label) for _, label in tables["train"]], valid)
    return correct | {NAIVE_BAYES: np.array(predicted) == np.array(labels).astype(int)}


def read_rows(path: Path) -> list[Row]:
    return [(row.cells[0], row.cells[1]) for row in read_table(str(path), find_columns(str(path)))]


@torch.inference_mode()
def _labels(folder: Path, texts: list[str]) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    labels: list[str] = []
    for first in range(0, len(texts), _BATCH):
        some = texts[first : first + _BATCH]
        batch = tokenizer(some, padding=True, truncation=True, max_length=_LONGEST, return_tensors="pt")
        labels += [model.config.id2label[number] for number in model(**batch).logits.argmax(-1).tolist()]
    return labels


def _examples(tokenizer: Any, rows: list[Row]) -> list[Example]:
    encoded = tokenizer([text for text, _ in rows], truncation=True, max_length=_LONGEST)["input_ids"]
    return [{"input_ids": ids, "labels": int(label)} for ids, (_, label) in zip(encoded, rows, strict=True)]
