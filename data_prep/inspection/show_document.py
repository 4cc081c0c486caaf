"""One document of a data set, decoded with the data set's tokenizer. Only its block is read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.tokenizer import load


def open_vocabulary(dataset: Dataset) -> Tokenizer | None:
    """The tokenizer of a data set; None if it has no tokenizer files. Raises DamagedData for other files."""
    if not dataset.manifest.tokenizer.files:
        return None
    dataset.check_tokenizer()
    return load(dataset.tokenizer_path)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of token ids. Special tokens appear with their names."""
    return tokenizer.decode(ids, skip_special_tokens=False)


@dataclass(frozen=True)
class ShownDocument:
    """A document and its origin.

    `number` counts from 0 over the data set, `index` within the block with the WebDataset key `key`. `input` is the
    file of the document, and `source` the name that the user gave to it; both are empty if the manifest has none. `id`
    is its id in that file, or None. ids [n_tokens], word_starts bool [n_tokens]; targets bool [n_tokens]: tokens that
    the wrong text of a pair lacks, or None without pairs.
    """

    number: int
    shard: str
    key: str
    index: int
    source: str
    input: str
    id: str | int | None
    ids: np.ndarray
    word_starts: np.ndarray
    targets: np.ndarray | None
    text: str
    tokens: list[str]


def document(dataset: Dataset, number: int) -> ShownDocument:
    """Document `number`, counted from 0 over the whole set.

    Raises UserError if it does not exist or the data set has no tokenizer, and DamagedData.
    """
    documents = dataset.manifest.totals.documents
    if not 0 <= number < documents:
        raise UserError(f"{dataset.location} has no document {number}; it has {documents:,}, counted from 0.")
    tokenizer = open_vocabulary(dataset)
    if tokenizer is None:
        raise UserError(f"{dataset.location} has no tokenizer files to decode its documents with.")
    block, index = dataset.find_document(number)
    ends = dataset.document_ends(block)
    part = slice(int(ends[index - 1]) if index else 0, int(ends[index]))
    ids, task = dataset.tokens(block)[part], dataset.task(block)
    names, targets = dataset.ids(block), dataset.targets(block)
    origin = dataset.manifest.source_of(task)
    return ShownDocument(
        number=number,
        shard=dataset.shard(block).name,
        key=dataset.key(block),
        index=index,
        source=origin.source if origin else "",
        input=origin.name if origin else "",
        id=names[index] if names is not None else None,
        ids=ids,
        word_starts=dataset.token_starts(block, ids, part),
        targets=None if targets is None else targets[part],
        text=text_of(tokenizer, ids.tolist()),
        tokens=[tokenizer.id_to_token(id) or f"<{id}>" for id in ids.tolist()],
    )
