"""Print one document of a data set."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.common.errors import printable

if TYPE_CHECKING:
    import numpy as np

    from data_prep.format import Dataset
    from data_prep.inspection import ShownDocument


def print_document(dataset: "Dataset", shown: "ShownDocument", tokens: bool = False) -> None:
    """Print where a document is from, and its text, or its `tokens` with a line for each word.

    Words to repair are shown as ⟦word⟧.
    """
    origin = " ".join(part for part in (shown.input, f"({shown.source})" if shown.source else "") if part)
    head = {
        "document": f"{shown.number:,}",
        "block": f"{shown.key}, document {shown.index:,} of it",
        "shard": shown.shard,
        "source": origin or "not recorded",
        **({} if shown.id is None else {"id": str(shown.id)}),
        "tokens": f"{len(shown.ids):,}",
        "words": f"{int(shown.word_starts.sum()):,}",
        **({} if shown.targets is None else {"targets": f"{int(shown.targets.sum()):,} tokens to repair"}),
    }
    for name, value in head.items():
        print(f"{name:<10}{printable(value)}")
    print()
    if not tokens:
        text = shown.text if shown.targets is None else _with_targets(shown.ids, shown.targets, dataset.tokenizer_path)
        print(printable(text, keep="\n\t"))
        return
    words: list[list[str]] = []
    targets = [False] * len(shown.ids) if shown.targets is None else shown.targets.tolist()
    for id, token, starts, target in zip(
        shown.ids.tolist(), shown.tokens, shown.word_starts.tolist(), targets, strict=True
    ):
        if starts or not words:
            words.append([])
        words[-1].append(f"⟦{printable(token)}⟧ ({id})" if target else f"{printable(token)} ({id})")
    for word in words:
        print("  ".join(word))


def _with_targets(ids: "np.ndarray", targets: "np.ndarray", tokenizer: Path) -> str:
    """Decode the text, with a mark around each run of targets."""
    from data_prep.tokenizer import Spelling

    spelling, text = Spelling.open(tokenizer), ""
    for target, group in groupby(zip(ids.tolist(), targets.tolist(), strict=True), lambda one: one[1]):
        part = spelling.text(id for id, _ in group)
        word = part.lstrip()
        text += f"{part[: len(part) - len(word)]}⟦{word}⟧" if target else part
    return text.removeprefix(" ")
