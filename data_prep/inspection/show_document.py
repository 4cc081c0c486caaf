"""One document of a data set, found without reading the others."""

from dataclasses import dataclass

import numpy as np

from data_prep.errors import UserError
from data_prep.format import Dataset
from data_prep.inspection.token_decoder import TokenDecoder, open_vocabulary


@dataclass(frozen=True)
class ShownDocument:
    """A document: where it lies and comes from, its ids [n_tokens], and for each whether it begins a word.

    `targets` are the tokens that the wrong text of a pair has not, if there are pairs.
    `number` counts from 0 over the data set, `place` within the block; `input` is the file it comes from and `source`
    the name that the user gave to it, both empty if the manifest does not tell; `id` is the one it has there, if any.
    """

    number: int
    shard: str
    key: str
    place: int
    source: str
    input: str
    id: str | int | None
    ids: np.ndarray
    word_starts: np.ndarray
    targets: np.ndarray | None
    text: str
    tokens: list[str]


def document(dataset: Dataset, number: int) -> ShownDocument:
    """Document `number`, counted from 0 over the whole set; reads the one block that has it.

    Raises UserError if there is no such document or the data set has no tokenizer to decode it, and DamagedData.
    """
    documents = dataset.manifest.totals.documents
    if not 0 <= number < documents:
        raise UserError(f"{dataset.location} has no document {number}; it has {documents:,}, counted from 0.")
    vocabulary = open_vocabulary(dataset)
    if vocabulary is None:
        raise UserError(f"{dataset.location} carries no tokenizer to decode its documents with.")
    block, place = dataset.find_document(number)
    stops = dataset.document_ends(block)
    part = slice(int(stops[place - 1]) if place else 0, int(stops[place]))
    ids = dataset.tokens(block)[part]
    names, targets = dataset.ids(block), dataset.targets(block)
    source, input = _origin(dataset, dataset.task(block))
    return ShownDocument(
        number=number,
        shard=dataset.shard(block).name,
        key=dataset.key(block),
        place=place,
        source=source,
        input=input,
        id=names[place] if names is not None else None,
        ids=ids,
        word_starts=_word_starts(dataset, block, part, ids, vocabulary),
        targets=None if targets is None else targets[part],
        text=vocabulary.text(ids.tolist()),
        tokens=[vocabulary.token(id) or f"<{id}>" for id in ids.tolist()],
    )


def _origin(dataset: Dataset, task: int) -> tuple[str, str]:
    for source in dataset.manifest.sources:
        if source.first_task <= task < source.first_task + source.tasks:
            return source.source, source.name
    return "", ""


def _word_starts(dataset: Dataset, block: int, part: slice, ids: np.ndarray, vocabulary: TokenDecoder) -> np.ndarray:
    if vocabulary.begins_word is not None:
        if int(ids.max()) >= len(vocabulary.begins_word):
            raise UserError(
                f"{dataset.location}: id {ids.max()} is not in the vocabulary; run `maskwright prep verify`."
            )
        return vocabulary.begins_word[ids]
    starts = dataset.word_starts(block)
    if starts is None:
        raise UserError(
            f"{dataset.location}: block {dataset.key(block)} has no word starts; run `maskwright prep verify`."
        )
    return starts[part]
