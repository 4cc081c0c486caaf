"""Cache of sentence scores on disk: a stopped evaluation resumes without recomputing them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from data_prep.errors import UnusableInput, UserError
from data_prep.reading import parse_json, read_bytes, shown_path
from evaluation.likelihood.sentence_tokenizer import EncodedSentence
from pretrain.checkpoint import hash_file
from pretrain.run.append_log import AppendLog

MAX_SCORES_BYTES = 4 << 30
_BEGIN = b'{"of": "'  # every line begins with this


@dataclass(frozen=True)
class _Line:
    of: str
    scores: dict[str, float]


def model_identity(folder: Path) -> str:
    """Hash of the weights, config and tokenizer of a Hugging Face folder."""
    files = sorted({*folder.glob("*.safetensors"), folder / "config.json", folder / "tokenizer.json"})
    parts = [f"{file.name} {hash_file(file)}" for file in files if file.is_file()]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def key_of(sentence: EncodedSentence) -> str:
    """Hash of a sentence's token ids and word numbers."""
    digest = xxhash.xxh3_128(sentence.ids.tobytes())
    digest.update(sentence.words.tobytes())
    return digest.hexdigest()


class KeptScores:
    """Scores of one model and score form, by `key_of`. The file may hold scores of others; without a file: in memory.

    Attributes:
        scores: the known scores.
    """

    def __init__(self, path: Path | None = None, of: str = "") -> None:
        """`of` names the model and the form of the score.

        Raises:
            UserError: if the file cannot be read or written, or is not a score file.
        """
        self.scores: dict[str, float] = {}
        self._of, self._path, self._file = of, path, None
        if path is None:
            return
        try:
            if path.exists():
                self._read(read_bytes(path, MAX_SCORES_BYTES))
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
        """Add scores and append them to the file.

        Raises:
            UserError: if the file cannot be written.
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
