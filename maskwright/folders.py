"""A data set and a run: what is in their folders."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.common.errors import UserError
from data_prep.common.files import refuse_link
from data_prep.common.urls import is_url
from data_prep.format import Dataset
from data_prep.storage import require_run
from maskwright.commands import PathLike, run_command_here, with_options
from maskwright.notebook import HtmlPage
from pretrain.checkpoint import committed
from pretrain.run import JournalTable, RunFolder, Status

if TYPE_CHECKING:
    import pandas


class DataSet:
    """A data set: the folder that `prepare` wrote, one of its parts `train` and `valid`, or a URL.

    Raises:
        UserError: here, and when it is read: it is missing, not finished or damaged.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        parts = [] if is_url(self.path) else [Path(self.path, name) for name in ("train", "valid")]
        self._locations = [str(part) for part in parts if part.is_dir()] or [self.path]
        self._parts = list(map(Dataset, self._locations))

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"DataSet({self.path!r}): {self.documents:,} documents, {self.tokens:,} tokens"

    @property
    def train(self) -> "DataSet":
        """The part to train on."""
        if Path(self._locations[0]).name == "valid":
            raise UserError(f"{self.path} is the held-out part. Name the folder above it.")
        return DataSet(self._locations[0])

    @property
    def valid(self) -> "DataSet":
        """The held-out part."""
        if len(self._locations) < 2:
            raise UserError(f"{self.path} has no held-out part. Prepare it with a valid_fraction.")
        return DataSet(self._locations[1])

    @property
    def documents(self) -> int:
        """The number of documents, of all parts."""
        return sum(part.manifest.totals.documents for part in self._parts)

    @property
    def tokens(self) -> int:
        """The number of tokens, of all parts."""
        return sum(part.manifest.totals.tokens for part in self._parts)

    def show(self, number: int, tokens: bool = False) -> None:
        """Print a document, of the part to train on if there are two; `tokens`: with a line for each word."""
        run_command_here("prep show", location=self._locations[0], number=number, tokens=tokens)


class Run:
    """A run folder. Raises UserError if it is not one."""

    def __init__(self, path: PathLike) -> None:
        require_run(Path(path))
        self._folder = RunFolder(Path(path))
        self.path = self._folder.path

    def __repr__(self) -> str:
        status = self.status
        return f"Run({str(self.path)!r}): {status.state}, step {status.step:,} of {status.total_steps:,}"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def status(self) -> Status:
        """How far the run is: state, step, total_steps, reason and next_action."""
        return self._folder.read_status()

    @property
    def metrics(self) -> "pandas.DataFrame":
        """The metrics so far: a row for each step with any, a column for each metric; NaN where it was not measured.

        If a step was trained twice, the values are from the second time. Damaged lines of the journal are counted on
        standard error, and left out.
        """
        try:
            table = JournalTable.read(self._folder.journal)
        except OSError as error:
            raise UserError(f"{self._folder.journal} cannot be read ({error.strerror}). Train the run first.") from None
        if table.torn:
            print(f"{table.torn} damaged lines of {self._folder.journal} are left out", file=sys.stderr)
        return table.frame()

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The folders of the checkpoints by step, the newest last."""
        return dict(sorted(committed(self._folder.checkpoints)))

    def report(self, out: PathLike | None = None) -> HtmlPage:
        """Write the HTML page of the run, which a notebook shows. `out`: the file; RUN/report.html by default."""
        return HtmlPage(Path(run_command_here("report", captured=True, run=self, out=out).strip()))

    @with_options("export", "run", "every")
    def export(
        self, out: PathLike | None = None, step: int | None = None, view: str | None = None, ema: bool = False
    ) -> Path:
        """Write a checkpoint as a Hugging Face model folder. Returns the folder.

        Without `out`, a folder in RUN/exports that exists is kept.
        """
        checkpoint = self.checkpoints.get(max(self.checkpoints, default=0) if step is None else step)
        if checkpoint and out is None:
            name = f"{checkpoint.name}{'-ema' if ema else ''}{f'-{view}' if view else ''}"
            if (kept := refuse_link(self._folder.exports) / name).joinpath("config.json").is_file():
                return kept
        written = run_command_here("export", captured=True, run=self, out=out, step=step, view=view, ema=ema)
        return Path(written.strip())
