"""Log-likelihood of sentences (causal models) and pseudo-log-likelihood (masked models).

The pseudo-log-likelihood masks each token of a sentence in turn and sums their log-probabilities; the model sees all
other tokens (Salazar et al., "Masked Language Model Scoring", ACL 2020, arXiv:1910.14659).

Shapes: n sentences of L tokens; R rows of S slots, each a copy of a sentence with its specials.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from evaluation.likelihood.predictors import EncodedSentence, Predictor, SentenceTokenizer, Stream
from evaluation.likelihood.score_file import ScoreFile
from pretrain.export import model_digest

ScoreProgress = Callable[[int, int], None]
"""(tokens scored, tokens in total)"""

_SLOTS = 8192  # of a stream
PART_TOKENS = 16384  # scored between two writes of the file: some seconds of a small model on a CPU


def sentence_scores(
    predictor: Predictor,
    texts: Sequence[str],
    progress: ScoreProgress = lambda done, total: None,
    slots: int = _SLOTS,
    file: ScoreFile | None = None,
    contexts: Sequence[int] | None = None,
) -> NDArray[np.float64]:
    """Log-likelihood of each text in nats [texts]; of masked models the pseudo-log-likelihood.

    Texts with the same tokens get the same score. Under a unigram model the order of the tokens does not matter either.

    Args:
        slots: of a stream.
        file: keeps the scores; those that it has are not computed again.
        contexts: characters at the start of each text that are read, but whose tokens are not scored; None: 0.
    """
    sentences = predictor.tokenizer(texts, contexts)
    keys = [np.append(sentence.ids, sentence.first).tobytes() for sentence in sentences]
    unique = dict(zip(keys, sentences, strict=True))
    of = model_digest(predictor.folder) if file and predictor.folder else ""
    scores = file.known(of) if file and of else {}
    missing = {key: sentence for key, sentence in unique.items() if key not in scores}
    total, left = (sum(len(text.ids) - text.first for text in each.values()) for each in (unique, missing))
    done = total - left
    for part in _parts(missing):
        ids = np.stack([sentence.ids for sentence in part.values()])
        (first,) = {sentence.first for sentence in part.values()}
        log_probabilities = [np.zeros(0)]
        for stream in _streams(predictor, ids, first, slots):
            log_probabilities.append(predictor.answers(stream).log_probabilities)
            done += len(stream.labels)
            progress(done, total)
        of_tokens = np.concatenate(log_probabilities).reshape(ids[:, first:].shape)
        new = dict(zip(part, map(math.fsum, of_tokens), strict=True))
        scores |= new
        if file and of:
            file.add(of, new)
    return np.array([scores[key] for key in keys])


def _parts(sentences: Mapping[bytes, EncodedSentence]) -> Iterator[dict[bytes, EncodedSentence]]:
    """Yield groups of sentences of one length, the shortest first, of at most PART_TOKENS tokens or one sentence.

    As many tokens of each sentence of a group are not scored.
    """
    shape_of = lambda item: (len(item[1].ids), item[1].first)  # noqa: E731
    for (length, _), group in groupby(sorted(sentences.items(), key=shape_of), shape_of):
        alike = list(group)
        take = max(1, PART_TOKENS // max(1, length))
        for first in range(0, len(alike), take):
            yield dict(alike[first : first + take])


def check_lengths(name: str, tokenizer: SentenceTokenizer, longest: int, texts: Sequence[str]) -> None:
    """Raise UserError if a text has more than `longest` tokens, specials included. name: of the model."""
    specials = 1 if tokenizer.last is None else 2
    for text, sentence in zip(texts, tokenizer(texts), strict=True):
        if (length := len(sentence.ids) + specials) > longest:
            raise UserError(f"{name}: a sentence has {length} tokens, and the model takes {longest}: {text[:60]!r}...")


def _streams(predictor: Predictor, ids: NDArray[np.int64], first_scored: int, slots: int) -> Iterator[Stream]:
    """Yield streams that predict each token of each sentence [n, L] from `first_scored` on once, in order."""
    n, length = ids.shape
    scored = length - first_scored
    if not scored:
        return
    if predictor.causal:
        take = max(1, slots // (length + 1))
        for first in range(0, n, take):
            taken = ids[first : first + take]
            rows = np.pad(taken, ((0, 0), (1, 0)), constant_values=predictor.tokenizer.first)
            before = np.arange(rows.size).reshape(rows.shape)[:, first_scored:-1]  # predicts the next token
            yield Stream.of_rows(rows, before.reshape(-1), taken[:, first_scored:].reshape(-1))
        return
    take = max(1, slots // (length + 2))
    for first in range(0, n * scored, take):
        sentence, place = np.divmod(np.arange(first, min(first + take, n * scored)), scored)
        yield _masked_stream(ids[sentence], first_scored + place, predictor.tokenizer)


def _masked_stream(ids: NDArray[np.int64], place: NDArray[np.int64], tokenizer: SentenceTokenizer) -> Stream:
    """Stream of sentences [R, L], each with one token masked, at `place` [R]."""
    row = np.arange(len(ids))
    masked = np.arange(ids.shape[1]) == place[:, None]
    assert tokenizer.mask is not None  # ids_around requires these for a masked model
    assert tokenizer.last is not None
    rows = np.pad(np.where(masked, tokenizer.mask, ids), ((0, 0), (1, 1)))
    rows[:, 0], rows[:, -1] = tokenizer.first, tokenizer.last
    return Stream.of_rows(rows, row * rows.shape[1] + 1 + place, ids[row, place])
