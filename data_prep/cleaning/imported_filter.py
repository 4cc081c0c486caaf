"""Filters that others wrote: a class by its import path, and the adapter to datatrove."""

import functools
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from data_prep.cleaning.text_filter import TextFilter
from data_prep.common.errors import UserError, first_line

_REPEATED = 64  # texts of the first batch that a filter gets twice
_distributions = functools.cache(packages_distributions)  # it reads the metadata of all packages, for half a second


class ImportedFilter(TextFilter):
    """`package.module:Class`, with arguments of the class as a JSON object. Its reasons begin with the class.

    The class has `keep` as in TextFilter, or is a filter or formatter of datatrove
    (https://github.com/huggingface/datatrove). `version` is the version of the installed package, if any, and the
    start of the SHA-256 of the class's file.
    """

    order = 100

    def __init__(self, name: str, value: str) -> None:
        self.name, (module, _, self._class) = name, name.partition(":")
        try:
            arguments = json.loads(value or "{}")
            kind = getattr(importlib.import_module(module), self._class)
            made = kind(**arguments)
            self.version, self._keep = _version(kind), _keep_of(made)
        except Exception as error:  # of code that is not ours
            raise ValueError(
                f"it cannot be loaded ({type(error).__name__}: {first_line(error)}). Install its package or set "
                "PYTHONPATH to its folder, and give its arguments as JSON, as '{\"percent\": 30}'"
            ) from error
        self._repeats = False

    def keep(self, texts: list[str]) -> list[str | None]:
        before = list(texts)
        reasons = self._checked(texts)
        if not self._repeats:  # each stage of a preparation must get the same documents
            again = before[:_REPEATED][::-1]
            if self._checked(again)[::-1] != reasons[:_REPEATED] or again[::-1] != texts[:_REPEATED]:
                raise UserError(f"--filter {self.name} gives the same texts another result. Use one without chance.")
            self._repeats = True
        return [f"{self._class}: {reason}" if reason else None for reason in reasons]

    def _checked(self, texts: list[str]) -> list[str | None]:
        """The reasons of the class. Raises UserError if it fails or gives something else."""
        count = len(texts)
        try:
            reasons: list[str | None] = list(self._keep(texts))
        except Exception as error:
            message = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"--filter {self.name} failed ({message}). Correct it, or leave it out.") from error
        if len(reasons) != count or {*map(type, reasons)} - {str, type(None)} or [*map(type, texts)] != [str] * count:
            raise UserError(f"--filter {self.name}: keep(texts) must return a reason or None for each text.")
        return reasons


def _version(kind: Any) -> str:
    packages = _distributions().get(kind.__module__.partition(".")[0], [])
    digest = hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()[:12]
    return "-".join([*map(version, packages[:1]), digest])


def _keep_of(made: Any) -> Callable[[list[str]], Any]:
    """`keep` of an object, or what does the same with a filter or formatter of datatrove."""

    def filtered(texts: list[str]) -> list[str | None]:
        from datatrove.data import Document

        documents = [Document(text, id="") for text in texts]
        results = [result if isinstance(result, tuple) else (result, None) for result in made.filter_batch(documents)]
        texts[:] = [document.text for document in documents]
        return [None if stays else reason or "dropped" for stays, reason in results]

    def formatted(texts: list[str]) -> list[None]:
        texts[:] = map(made.format, texts)
        return [None] * len(texts)

    if hasattr(made, "filter_batch"):
        return filtered
    return formatted if hasattr(made, "format") else made.keep
