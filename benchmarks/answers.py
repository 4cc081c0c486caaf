"""Which sentences fine-tuned models get right, by a loop over transformers, and naive Bayes on the same tokens."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from evaluation.finetuning.classification import find_columns, naive_bayes
from evaluation.finetuning.example_files import read_table
from evaluation.finetuning.feature_batches import Feature

NAIVE_BAYES = "naive Bayes"
_BATCH = 64
_LONGEST = 128  # tokens, as `maskwright finetune` has it unless told otherwise


def right_answers(folder: Path, models: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Whether each sentence of folder/valid.tsv is labelled rightly: bool [sentences] by name.

    Args:
        models: names of folders in `folder`, each a model fine-tuned on folder/train.tsv.
    """
    tables = {name: _table(folder / f"{name}.tsv") for name in ("train", "valid")}
    texts, labels = tables["valid"]
    found = {name: np.array(_labels(folder / name, texts)) == np.array(labels) for name in models}
    tokenizer = AutoTokenizer.from_pretrained(folder / models[0])
    counted = {name: _features(tokenizer, *table) for name, table in tables.items()}
    told = naive_bayes(counted["train"], [int(label) for label in tables["train"][1]], counted["valid"])
    return found | {NAIVE_BAYES: np.array(told) == np.array([int(label) for label in labels])}


def _table(path: Path) -> tuple[list[str], list[str]]:
    rows = read_table(str(path), find_columns(str(path)))
    return [row.cells[0] for row in rows], [row.cells[1] for row in rows]


@torch.inference_mode()
def _labels(folder: Path, texts: list[str]) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found: list[str] = []
    for first in range(0, len(texts), _BATCH):
        some = texts[first : first + _BATCH]
        batch = tokenizer(some, padding=True, truncation=True, max_length=_LONGEST, return_tensors="pt")
        found += [model.config.id2label[number] for number in model(**batch).logits.argmax(-1).tolist()]
    return found


def _features(tokenizer: AutoTokenizer, texts: list[str], labels: list[str]) -> list[Feature]:
    encoded = tokenizer(texts, truncation=True, max_length=_LONGEST)["input_ids"]
    return [Feature({"input_ids": ids}, {"labels": int(label)}) for ids, label in zip(encoded, labels, strict=True)]
