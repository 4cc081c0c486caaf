"""Scores of sentences, kept while they are computed: an evaluation that was stopped goes on where it was."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from data_prep.errors import UnusableInput, UserError
from data_prep.reading import parse_json, read_bytes, shown_path
from evaluation.likelihood.sentence_tokenizer import EncodedSentence
from pretrain.checkpoint import hash_file
from pretrain.run.append_log import LineFile

MAX_SCORES_BYTES = 4 << 30
_BEGIN = b'{"of": "'  # of each line


@dataclass(frozen=True)
class _Line:
    of: str
    scores: dict[str, float]


def model_identity(folder: Path) -> str:
    """Of a Hugging Face folder: its weights, configuration and tokenizer, hashed."""
    files = sorted({*folder.glob("*.safetensors"), folder / "config.json", folder / "tokenizer.json"})
    parts = [f"{file.name} {hash_file(file)}" for file in files if file.is_file()]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def key_of(sentence: EncodedSentence) -> str:
    """The same for sentences of the same tokens and words alone."""
    digest = xxhash.xxh3_128(sentence.ids.tobytes())
    digest.update(sentence.words.tobytes())
    return digest.hexdigest()


class KeptScores:
    """Scores by `key_of` that belong together, in a file that may hold others too; without one, in memory alone.

    Attributes:
        scores: those that are there.
    """

    def __init__(self, path: Path | None = None, of: str = "") -> None:
        """`of` says what decides the scores beside the sentence: the model, and the form of score.

        Raises:
            UserError: if the file cannot be read or written, or is another one.
        """
        self.scores: dict[str, float] = {}
        self._of, self._path, self._file = of, path, None
        if path is None:
            return
        try:
            if path.exists():
                self._read(read_bytes(path, MAX_SCORES_BYTES))
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(path)  # which drops what a kill left of a line: not before it is known to be one
        except OSError as error:
            raise self._unusable(error) from error
        except ValueError:
            raise UnusableInput(
                f"{shown_path(path)} holds no scores of an evaluation; move it, or write to another file"
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
        """Keep these as well.

        Raises:
            UserError: if they cannot be written.
        """
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
