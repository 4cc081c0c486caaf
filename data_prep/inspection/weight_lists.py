"""Weights of tokens for masking: by frequency, of listed words, and of content words."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset, WeightList
from data_prep.tokenizer import Spelling


class TokenWeights:
    """Weights of a data set's tokens, float64 [vocab_size]. Raises UserError if it has no tokenizer files."""

    def __init__(self, dataset: Dataset, progress: Callable[[int, int], None]):
        if not dataset.manifest.tokenizer.files:
            raise UserError(f"{dataset.location} has no tokenizer files, which weights of tokens need.")
        dataset.check_tokenizer()
        self._progress = progress
        self._dataset, self._size = dataset, dataset.manifest.tokenizer.vocab_size
        pieces = Spelling.open(dataset.tokenizer_path).pieces.items()
        self._texts = {id: piece.decode("utf-8", errors="replace") for id, piece in sorted(pieces)}
        self._signs = [id for id, text in self._texts.items() if not any(map(str.isalnum, text))]

    def by_frequency(self, power: float) -> NDArray[np.float64]:
        """Count ** -power, at least a millionth; ids that do not occur count as one.

        With power 0.5, a token is predicted about as often as the square root of its count, as in the subsampling of
        Mikolov et al., "Distributed representations of words and phrases and their compositionality", 2013.
        """
        counts = np.maximum(self._dataset.token_counts(progress=self._progress), 1)
        return np.maximum(np.round(counts**-power, 9), 1e-6)

    def of_content(self, most_frequent: int) -> NDArray[np.float64]:
        """1, but 0 for signs and for the most frequent tokens that begin a word."""
        counts = self._dataset.token_counts(progress=self._progress)
        counts[[id for id, text in self._texts.items() if not text.startswith(" ")]] = 0
        counts[self._signs] = 0
        weights = np.ones(self._size)
        weights[np.argsort(-counts, kind="stable")[: min(most_frequent, np.count_nonzero(counts))]] = 0
        weights[self._signs] = 0
        return weights

    def of_words(self, pairs: Sequence[tuple[str, float]], other: float) -> tuple[NDArray[np.float64], int]:
        """The mean of the weights of each word that is one token, `other` for others; and the number of pairs left out.

        If the weights are 1 for occurrences with a part of speech and 0 for others, this is the share of the part of
        speech.
        """
        ids = {text: id for id, text in self._texts.items()}
        listed = [ids.get(f" {word}", ids.get(f" {word.lower()}", -1)) for word, _ in pairs]
        sums = np.bincount([id + 1 for id in listed], [weight for _, weight in pairs], self._size + 1)[1:]
        times = np.bincount([id + 1 for id in listed], minlength=self._size + 1)[1:]
        return np.where(times, sums / np.maximum(times, 1), other), listed.count(-1)

    def listed(self, weights: NDArray[np.float64]) -> WeightList:
        """The list of these weights."""
        try:
            return WeightList(self._dataset.manifest.tokenizer.sha256, weights.tolist())
        except ValueError as error:
            raise UserError(f"The weights cannot be used: {error}.") from None
