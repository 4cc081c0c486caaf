"""Log-likelihood of sentences (causal models) and pseudo-log-likelihood (masked models).

The pseudo-log-likelihood masks each token of a sentence in turn and sums their log-probabilities.
- `original`: the model sees all other tokens (Salazar et al., "Masked Language Model Scoring", ACL 2020,
  arXiv:1910.14659).
- `within-word`: later tokens of the same word are masked too, because they reveal the masked token (Kauf and Ivanova,
  "A Better Way to Do Masked Language Model Scoring", ACL 2023, arXiv:2305.10588: PLL-word-l2r).

Shapes: n sentences of L tokens; R rows of S slots, each a copy of a sentence with its specials.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from evaluation.likelihood.prediction_streams import Predictor, Stream, stream_of
from evaluation.likelihood.score_cache import KeptScores, key_of
from evaluation.likelihood.sentence_tokenizer import EncodedSentence, SentenceTokenizer

Form = Literal["original", "within-word"]
Progress = Callable[[int, int], None]
"""(tokens scored, tokens in total)"""

SLOTS = 8192  # of a stream
_KEPT_AT_ONCE = 16384  # tokens per write to the cache: some seconds of a small model on a CPU


@dataclass(frozen=True)
class _ScoreGroup:
    """Sentences of the same length: ids and words [n, L] int64, as in EncodedSentence."""

    ids: NDArray[np.int64]
    words: NDArray[np.int64]


def sentence_scores(
    predictor: Predictor,
    tokenizer: SentenceTokenizer,
    texts: Sequence[str],
    form: Form,
    progress: Progress = lambda done, total: None,
    kept: KeptScores | None = None,
) -> NDArray[np.float64]:
    """Log-likelihood of each text in nats [texts]; masked models use the score `form`.

    Texts with the same tokens get the same score, independent of the other texts. Under a unigram model the order of
    the tokens does not matter either.

    Args:
        kept: cache of known scores; new scores are added.
    """
    kept = kept or KeptScores()
    sentences = tokenizer(texts)
    keys = [key_of(sentence) for sentence in sentences]
    unique = dict(zip(keys, sentences, strict=True))
    missing = {key: sentence for key, sentence in unique.items() if key not in kept.scores}
    total = _tokens(unique)
    done = total - _tokens(missing)
    for part in _parts(missing):
        stacked = _ScoreGroup(
            np.stack([one.ids for one in part.values()]), np.stack([one.words for one in part.values()])
        )
        log_probabilities = [np.zeros(0)]
        for stream in _streams(stacked, predictor.causal, tokenizer, form):
            log_probabilities.append(predictor(stream).log_probabilities)
            done += len(stream.labels)
            progress(done, total)
        of_tokens = np.concatenate(log_probabilities).reshape(stacked.ids.shape)
        kept.add(dict(zip(part, [math.fsum(row) for row in of_tokens], strict=True)))
    return np.array([kept.scores[key] for key in keys])


def check_lengths(name: str, tokenizer: SentenceTokenizer, longest: int, texts: Sequence[str]) -> None:
    """Raise UserError if a text has more than `longest` tokens, specials included. name: of the model."""
    specials = 1 if tokenizer.last is None else 2
    for text, sentence in zip(texts, tokenizer(texts), strict=True):
        if (length := len(sentence.ids) + specials) > longest:
            raise UserError(f"{name}: a sentence has {length} tokens, and the model takes {longest}: {text[:60]!r}...")


def _tokens(sentences: dict[str, EncodedSentence]) -> int:
    return sum(len(one.ids) for one in sentences.values())


def _parts(sentences: dict[str, EncodedSentence]) -> Iterator[dict[str, EncodedSentence]]:
    """Yield small groups of sentences of the same length, the shortest first."""
    by_length: dict[int, list[str]] = {}
    for key, sentence in sentences.items():
        by_length.setdefault(len(sentence.ids), []).append(key)
    for length, keys in sorted(by_length.items()):
        take = max(1, _KEPT_AT_ONCE // max(1, length))
        for first in range(0, len(keys), take):
            yield {key: sentences[key] for key in keys[first : first + take]}


def _streams(group: _ScoreGroup, causal: bool, tokenizer: SentenceTokenizer, form: Form) -> Iterator[Stream]:
    """Yield streams that predict each token of each sentence once, in order."""
    n, length = group.ids.shape
    if not length:
        return
    if causal:
        take = max(1, SLOTS // (length + 1))
        for first in range(0, n, take):
            yield _causal_stream(group.ids[first : first + take], tokenizer)
        return
    take = max(1, SLOTS // (length + 2))
    for first in range(0, n * length, take):
        yield _masked_stream(group, np.arange(first, min(first + take, n * length)), tokenizer, form)


def _causal_stream(ids: NDArray[np.int64], tokenizer: SentenceTokenizer) -> Stream:
    """Stream of whole sentences; the state before each token predicts it."""
    rows = np.pad(ids, ((0, 0), (1, 0)), constant_values=tokenizer.first)
    places = np.arange(rows.size).reshape(rows.shape)[:, :-1]
    return stream_of(rows, places.reshape(-1), ids.reshape(-1))


def _masked_stream(group: _ScoreGroup, copies: NDArray[np.int64], tokenizer: SentenceTokenizer, form: Form) -> Stream:
    """Stream of masked copies [R]: copy i * L + j is sentence i with token j masked."""
    sentence, place = np.divmod(copies, group.ids.shape[1])
    ids = group.ids[sentence]
    columns = np.arange(ids.shape[1])
    masked = columns == place[:, None]
    if form == "within-word":
        words = group.words[sentence]
        masked |= (words == group.words[sentence, place][:, None]) & (columns > place[:, None])
    assert tokenizer.mask is not None  # ids_around requires these for a masked model
    assert tokenizer.last is not None
    rows = np.pad(np.where(masked, tokenizer.mask, ids), ((0, 0), (1, 1)))
    rows[:, 0], rows[:, -1] = tokenizer.first, tokenizer.last
    places = np.arange(len(rows)) * rows.shape[1] + 1 + place
    return stream_of(rows, places, group.ids[sentence, place])
