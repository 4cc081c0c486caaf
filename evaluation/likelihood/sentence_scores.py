"""Log-likelihood of sentences (causal models) and pseudo-log-likelihood (masked models).

The pseudo-log-likelihood masks each token of a sentence in turn and sums their log-probabilities.
- `original`: the model sees all other tokens (Salazar et al., "Masked Language Model Scoring", ACL 2020,
  arXiv:1910.14659).
- `within-word`: later tokens of the same word are masked too, because they reveal the masked token (Kauf and Ivanova,
  "A Better Way to Do Masked Language Model Scoring", ACL 2023, arXiv:2305.10588: PLL-word-l2r).

Shapes: n sentences of L tokens; R rows of S slots, each a copy of a sentence with its specials.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.common.errors import UnusableInput, UserError
from data_prep.common.files import AppendLog, hash_stream, open_plain
from data_prep.common.reading import parse_json, read_bytes, shown_path
from evaluation.likelihood.predictors import EncodedSentence, Predictor, SentenceTokenizer, Stream

Form = Literal["original", "within-word"]
ScoreProgress = Callable[[int, int], None]
"""(tokens scored, tokens in total)"""

_MAX_SCORES_BYTES = 4 << 30
_SLOTS = 8192  # of a stream
_BEGIN = b'{"of": "'  # every line of the cache begins with this


def sentence_scores(
    predictor: Predictor,
    texts: Sequence[str],
    form: Form,
    progress: ScoreProgress = lambda done, total: None,
    cache: "ScoreCache | None" = None,
    slots: int = _SLOTS,
) -> NDArray[np.float64]:
    """Log-likelihood of each text in nats [texts]; masked models use the score `form`.

    Texts with the same tokens get the same score, independent of the other texts. Under a unigram model the order of
    the tokens does not matter either.

    Args:
        cache: known scores; new scores are added.
        slots: of a stream.
    """
    cache = cache or ScoreCache()
    sentences = predictor.tokenizer(texts)
    keys = [key_of(sentence) for sentence in sentences]
    unique = dict(zip(keys, sentences, strict=True))
    missing = {key: sentence for key, sentence in unique.items() if key not in cache.scores}
    total = sum(len(one.ids) for one in unique.values())
    done = total - sum(len(one.ids) for one in missing.values())
    for part in _parts(missing, cache.tokens_at_once):
        ids, words = (np.stack([getattr(one, name) for one in part.values()]) for name in ("ids", "words"))
        log_probabilities = [np.zeros(0)]
        for stream in _streams(predictor, ids, words, form, slots):
            log_probabilities.append(predictor.answers(stream).log_probabilities)
            done += len(stream.labels)
            progress(done, total)
        of_tokens = np.concatenate(log_probabilities).reshape(ids.shape)
        cache.add(dict(zip(part, [math.fsum(row) for row in of_tokens], strict=True)))
    return np.array([cache.scores[key] for key in keys])


def check_lengths(name: str, tokenizer: SentenceTokenizer, longest: int, texts: Sequence[str]) -> None:
    """Raise UserError if a text has more than `longest` tokens, specials included. name: of the model."""
    specials = 1 if tokenizer.last is None else 2
    for text, sentence in zip(texts, tokenizer(texts), strict=True):
        if (length := len(sentence.ids) + specials) > longest:
            raise UserError(f"{name}: a sentence has {length} tokens, and the model takes {longest}: {text[:60]!r}...")


def _parts(sentences: dict[str, EncodedSentence], most: int) -> Iterator[dict[str, EncodedSentence]]:
    """Yield groups of sentences of the same length, of at most `most` tokens or one sentence, the shortest first."""
    by_length: dict[int, list[str]] = {}
    for key, sentence in sentences.items():
        by_length.setdefault(len(sentence.ids), []).append(key)
    for length, keys in sorted(by_length.items()):
        take = max(1, most // max(1, length))
        for first in range(0, len(keys), take):
            yield {key: sentences[key] for key in keys[first : first + take]}


def _streams(
    predictor: Predictor, ids: NDArray[np.int64], words: NDArray[np.int64], form: Form, slots: int
) -> Iterator[Stream]:
    """Yield streams that predict each token of each sentence [n, L] once, in order."""
    n, length = ids.shape
    if not length:
        return
    if predictor.causal:
        take = max(1, slots // (length + 1))
        for first in range(0, n, take):
            taken = ids[first : first + take]
            rows = np.pad(taken, ((0, 0), (1, 0)), constant_values=predictor.tokenizer.first)
            before = np.arange(rows.size).reshape(rows.shape)[:, :-1]  # the state there predicts the next token
            yield Stream.of_rows(rows, before.reshape(-1), taken.reshape(-1))
        return
    take = max(1, slots // (length + 2))
    for first in range(0, n * length, take):
        sentence, place = np.divmod(np.arange(first, min(first + take, n * length)), length)
        yield _masked_stream(ids[sentence], words[sentence], place, predictor.tokenizer, form)


def _masked_stream(
    ids: NDArray[np.int64], words: NDArray[np.int64], place: NDArray[np.int64], tokenizer: SentenceTokenizer, form: Form
) -> Stream:
    """Stream of sentences [R, L], each with one token masked, at `place` [R]."""
    row, columns = np.arange(len(ids)), np.arange(ids.shape[1])
    masked = columns == place[:, None]
    if form == "within-word":
        masked |= (words == words[row, place][:, None]) & (columns > place[:, None])
    assert tokenizer.mask is not None  # ids_around requires these for a masked model
    assert tokenizer.last is not None
    rows = np.pad(np.where(masked, tokenizer.mask, ids), ((0, 0), (1, 1)))
    rows[:, 0], rows[:, -1] = tokenizer.first, tokenizer.last
    return Stream.of_rows(rows, row * rows.shape[1] + 1 + place, ids[row, place])


def model_identity(folder: Path) -> str:
    """Hash of the weights, config and tokenizer of a Hugging Face folder."""
    files = sorted({*folder.glob("*.safetensors"), folder / "config.json", folder / "tokenizer.json"})
    parts = [f"{file.name} {_hash_file(file)}" for file in files if file.is_file()]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def _hash_file(path: Path) -> str:
    with open_plain(path) as file:
        return hash_stream(file, xxhash.xxh3_128())


def key_of(sentence: EncodedSentence) -> str:
    """Hash of a sentence's token ids and word numbers."""
    digest = xxhash.xxh3_128(sentence.ids.tobytes())
    digest.update(sentence.words.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Line:
    of: str
    scores: dict[str, float]


class ScoreCache:
    """Scores of one model and score form, by `key_of`. A stopped evaluation resumes with them.

    A file may also hold the scores of others. Without a file, scores are in memory only.

    Attributes:
        scores: the known scores.
        tokens_at_once: tokens of the sentences per write: some seconds of a small model on a CPU.
    """

    tokens_at_once = 16384

    def __init__(self, path: Path | None = None, of: str = "") -> None:
        """`of` names the model and the form of the score.

        Raises UserError if the file cannot be read or written, or is not a score file.
        """
        self.scores: dict[str, float] = {}
        self._of, self._path, self._file = of, path, None
        if path is None:
            return
        try:
            if path.exists():
                self._read(read_bytes(path, _MAX_SCORES_BYTES))
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._file = AppendLog(path)  # truncates an incomplete last line, so check the file first
        except OSError as error:
            raise self._unusable(error) from error
        except ValueError:
            raise UnusableInput(
                f"{shown_path(path)} holds no scores of an evaluation; move it, or write to another file."
            ) from None

    def _read(self, content: bytes) -> None:
        *lines, rest = content.split(b"\n")
        if rest[: len(_BEGIN)] != _BEGIN[: len(rest)]:
            raise ValueError("no line of scores that was cut short")
        for line in lines:
            entry: _Line = parse_json(line, _Line)
            if entry.of == self._of:
                self.scores |= entry.scores

    def _unusable(self, error: OSError) -> UserError:
        return UnusableInput(f"{self._path} cannot be used to keep scores in ({error.strerror})")

    def add(self, scores: Mapping[str, float]) -> None:
        """Add scores and append them to the file. Raises UserError if the file cannot be written."""
        self.scores |= scores
        if not self._file:
            return
        try:
            self._file.append(json.dumps({"of": self._of, "scores": dict(scores)}).encode() + b"\n")
        except OSError as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        if self._file:
            self._file.close()
