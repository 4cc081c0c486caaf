"""Scores of sentences in an SQLite file, so that a stopped evaluation resumes."""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from data_prep.common.errors import UnusableInput
from data_prep.common.files import open_plain, refuse_link


class ScoreFile:
    """The file of one evaluation. The key of a sentence is its token ids and the number of those that are not scored.

    Raises UnusableInput, here and in the methods, if it cannot be read or written, or is not such a file.
    """

    def __init__(self, path: Path) -> None:
        self._path = refuse_link(path)
        with self._errors():
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                open_plain(path).close()  # sqlite waits for a pipe, and says "disk I/O error"
            self._file = sqlite3.connect(path)
            tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables - {"scores"}:
                raise ValueError(f"it has a table {min(tables - {'scores'})}")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS scores (of TEXT, key BLOB, score REAL, PRIMARY KEY (of, key))"
            )

    def known(self, of: str) -> dict[bytes, float]:
        """All scores of one model."""
        with self._errors():
            rows = self._file.execute("SELECT key, score FROM scores WHERE of = ?", (of,))
            return {bytes(key): float(score) for key, score in rows}

    def add(self, of: str, scores: Mapping[bytes, float]) -> None:
        """Write scores of one model: all of them, or none where the process is killed."""
        with self._errors(), self._file:
            self._file.executemany(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", [(of, *row) for row in scores.items()]
            )

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, TypeError, ValueError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise UnusableInput(
                f"{self._path} cannot keep the scores of an evaluation ({reason}). End what uses it, move it, or write "
                "to another file."
            ) from None
