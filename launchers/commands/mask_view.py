"""Data of `maskwright mask show`: rows of a text or a data set with the masks of several epochs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from data_prep.common.errors import UserError
from data_prep.format import TokenizerInfo
from data_prep.tokenizer import Encoders, Spelling, describe, fetch, load
from launchers.commands.marked_text import Segment, marked, plain_text
from pretrain.config import Config
from pretrain.data import BatchDocument, RowVisits, Sources
from pretrain.masking import Vocabulary


@dataclass(frozen=True)
class ShownRow:
    """A masked row: its documents, each with the marked text and the unit of each position."""

    documents: list[BatchDocument]
    texts: list[list[Segment]]
    units: list[list[int]]


@dataclass(frozen=True)
class ShownStep:
    """One masked visit of all rows.

    tokens: ordinary tokens of all rows. units: number of selected units. fates: number of predictions by fate.
    """

    step: int
    epoch: int
    rate: float
    tokens: int
    units: int
    fates: Counter[str]
    rows: list[ShownRow]

    @property
    def selected(self) -> int:
        """Number of predicted tokens."""
        return self.fates.total()

    def to_json(self) -> dict[str, Any]:
        """All shown values, with token ids."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "rate": self.rate,
            "tokens": self.tokens,
            "selected": self.selected,
            "units": self.units,
            **{kind: self.fates[kind] for kind in ("mask", "random", "kept")},
            "rows": [
                {"row": number, "documents": [*map(_json, row.documents, row.texts, row.units)]}
                for number, row in enumerate(self.rows)
            ],
        }


def _json(document: BatchDocument, text: list[Segment], units: list[int]) -> dict[str, Any]:
    found = asdict(document)
    for prediction in found["predictions"]:
        prediction["unit"] = units[prediction["place"]]
    return found | {"text": plain_text(text)}


class Show:
    """Rows of a text or a data set, ready for masking."""

    def __init__(self, config: Config, rows: RowVisits, spelling: Spelling):
        self.config, self.rows, self._spelling = config, rows, spelling

    def steps(self, number: int) -> Iterator[ShownStep]:
        """Yield the visits in order."""
        for step, visit in enumerate(self.rows.visits(number), 1):
            documents = visit.rows.documents(self.rows.vocabulary)
            rows = [self._row(*of_row) for of_row in zip(documents, visit.units, strict=True)]
            fates: Counter[str] = Counter(
                p.kind for row in rows for document in row.documents for p in document.predictions
            )
            yield ShownStep(
                step=step,
                epoch=visit.epoch,
                rate=visit.rate,
                tokens=int(visit.ordinary.sum()),
                units=len(np.unique(visit.units[visit.predicted])),
                fates=fates,
                rows=rows,
            )

    def _row(self, documents: list[BatchDocument], units: np.ndarray) -> ShownRow:
        vocabulary = self.rows.vocabulary
        outside = frozenset({vocabulary.cls, vocabulary.sep})
        of_documents = [units[d.slot : d.slot + len(d.original)].tolist() for d in documents]
        texts = [
            marked(document, self._spelling, outside, numbers)
            for document, numbers in zip(documents, of_documents, strict=True)
        ]
        return ShownRow(documents, texts, of_documents)


def show_text(text: str, tokenizer: str, config: Config, most: int) -> Show:
    """Pack the first `most` rows of a text. The tokenizer is a folder, a tokenizer.json or a hub id.

    Raises:
        UserError: for a text without tokens, a tokenizer that cannot be loaded or lacks a token that masking needs,
            and an objective other than masked language modelling.
    """
    _check_objective(config)
    if not text.strip():
        raise UserError("the text is empty; there is nothing to mask")
    with TemporaryDirectory() as temporary:
        folder = fetch(tokenizer, Path(temporary) / Path(tokenizer).stem)
        info, spelling = describe(folder), Spelling.open(folder)
        ids, word_starts = _encode(text, folder, info)
    if not len(ids):
        raise UserError(f"the text has no tokens; {tokenizer} leaves nothing of it")
    return Show(config, RowVisits.of_text(config, Vocabulary.of(info), ids, word_starts, most), spelling)


def _encode(text: str, folder: Path, info: TokenizerInfo) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [T] as `maskwright prep` writes them, and word starts [T]."""
    encoder, _ = Encoders(load(folder), info).choose([text])
    ids, _, word_starts = encoder([text])
    if word_starts is None:
        word_starts = info.begins_word((folder / "tokenizer.json").read_bytes())[ids]
    return ids, word_starts


def show_data(config: Config, most: int) -> Show:
    """Pack the first `most` rows of the first window of data.train's first data set, as in training.

    Raises:
        UserError: for a data set that cannot be read or has no tokenizer, and for another objective.
    """
    _check_objective(config)
    sources = Sources.open(config)
    dataset = sources.datasets[0]
    if not dataset.manifest.tokenizer.files:
        raise UserError(f"{dataset.location} carries no tokenizer to decode its documents with")
    dataset.check_tokenizer()
    return Show(config, RowVisits.of_data(config, sources, most), Spelling.open(dataset.tokenizer_path))


def _check_objective(config: Config) -> None:
    if not config.objective_kind.draws_masks:
        raise UserError("the config's objective is not masked language modelling, which alone has masks to show")
