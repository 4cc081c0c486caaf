"""The functions and classes of the package. A function runs the command of its name."""

import html
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from data_prep.common.errors import UserError as UserError
from data_prep.common.urls import is_url
from data_prep.format import Dataset
from data_prep.storage import require_run
from maskwright.commands import PathLike, run_command_here, with_options
from pretrain.checkpoint import committed
from pretrain.config import View
from pretrain.config_files import load_config, override_words
from pretrain.run import JournalTable, RunFolder, Status

if TYPE_CHECKING:
    import pandas

Paths = PathLike | Sequence[PathLike]


class DataSet:
    """A data set: the folder that `prepare` wrote, one of its parts `train` and `valid`, or a URL.

    `documents` and `tokens` are the numbers of all parts. Raises UserError if it is missing, not finished or damaged.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        parts = [] if is_url(self.path) else [Path(self.path, name) for name in ("train", "valid")]
        self._parts = [str(part) for part in parts if part.is_dir()] or [self.path]
        totals = [Dataset(part).manifest.totals for part in self._parts]
        self.documents = sum(part.documents for part in totals)
        self.tokens = sum(part.tokens for part in totals)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"DataSet({self.path!r}): {self.documents:,} documents, {self.tokens:,} tokens"

    @property
    def train(self) -> "DataSet":
        """The part to train on."""
        if Path(self._parts[0]).name == "valid":
            raise UserError(f"{self.path} is the held-out part. Name the folder above it.")
        return DataSet(self._parts[0])

    @property
    def valid(self) -> "DataSet":
        """The held-out part."""
        if len(self._parts) < 2:
            raise UserError(f"{self.path} has no held-out part. Prepare it with a valid_fraction.")
        return DataSet(self._parts[1])

    def show(self, number: int, tokens: bool = False) -> None:
        """Print a document, of the part to train on if there are two; `tokens`: with a line for each word."""
        run_command_here("prep show", location=self._parts[0], number=number, tokens=tokens)


@dataclass
class HtmlPage:
    """A file with an HTML page. A notebook shows it in a frame that can reach nothing else."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 640px; border: 0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'


class Run:
    """A run folder. Raises UserError if it is not one."""

    def __init__(self, path: PathLike) -> None:
        require_run(Path(path))
        self._folder = RunFolder(Path(path))
        self.path = self._folder.path

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        status = self.status
        return f"Run({str(self.path)!r}): {status.state}, step {status.step:,} of {status.total_steps:,}"

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
        journal = self._folder.journal
        try:
            table = JournalTable.read(journal)
        except OSError as error:
            raise UserError(f"{journal} cannot be read ({error.strerror}). Train the run first.") from None
        if table.torn:
            print(f"{table.torn} damaged lines of {journal} are left out", file=sys.stderr)
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
        step = max(self.checkpoints, default=0) if step is None else step
        if out is None and (self._folder.export_of(step, ema, view) / "config.json").is_file():
            from pretrain.export import exported_folder

            return exported_folder(self.path, step, View(view) if view else None, ema)
        return Path(run_command_here("export", captured=True, run=self, out=out, step=step, view=view, ema=ema).strip())


@with_options("tokenizer train", "more")
def train_tokenizer(input: Paths, out: PathLike, **options: Any) -> Path:
    """Train a tokenizer. Returns its folder, which `transformers.AutoTokenizer.from_pretrained` loads."""
    run_command_here("tokenizer train", input=input, out=out, **options)
    return Path(out)


@with_options("prep run", "more", "plan_only")
def prepare(input: Paths, tokenizer: PathLike, out: PathLike, valid_fraction: float = 0.05, **options: Any) -> DataSet:
    """Tokenize text into a data set. After an interruption, the same call resumes.

    By default, 5% of the documents become the part `valid`. The command holds out none by default.
    """
    run_command_here("prep run", input=input, tokenizer=tokenizer, out=out, valid_fraction=valid_fraction, **options)
    return DataSet(out)


@with_options("mask show")
def show_masks(text: str, tokenizer: PathLike, overrides: Mapping[str, Any] | None = None, **options: Any) -> None:
    """Print how a text is masked in several epochs. `overrides`: such as `{"masking.strategy": "span"}`."""
    run_command_here("mask show", text=text, tokenizer=tokenizer, overrides=override_words(overrides or {}), **options)


@with_options("train")
def train(config: PathLike, overrides: Mapping[str, Any] | None = None, **options: Any) -> Run:
    """Train on this machine. After a stop or a crash, the same call resumes. A complete run is not trained again.

    `overrides`: such as `{"train.steps": 200}`. Ctrl-C saves a checkpoint first; a second one ends the run immediately.
    """
    words = override_words(overrides or {})
    folder = load_config(Path(config), words).run.dir
    run_command_here("train", config=config, overrides=words, **options)
    return Run(folder)


@with_options("evaluate")
def evaluate(models: Paths = (), data: PathLike | None = None, **options: Any) -> dict[str, Any]:
    """Evaluate models on held-out text and minimal pairs, and compare them with the first one.

    Returns what the command writes with --json: the results by `models` and `comparisons`.
    """
    if options.get("suite") and not options.get("out"):  # its results would be lost with the temporary folder
        raise UserError("A suite keeps its results in a file, and resumes from it. Add out=FILE.")
    with TemporaryDirectory() as temporary:
        results = Path(options.pop("out", None) or Path(temporary, "results.json"))
        run_command_here("evaluate", captured=True, models=models, data=data, out=results, **options)
        return dict(json.loads(results.read_bytes()))


@with_options("fill", "as_json")
def fill(model: PathLike, text: str | Sequence[str], **options: Any) -> "pandas.DataFrame":
    """Fill each [MASK] of a text, or of several.

    Returns a pandas.DataFrame, the most likely token of each mask first: text, mask (its number in the text, from 0),
    token, id, and probability among all tokens that are not special.
    """
    import pandas

    output = run_command_here("fill", captured=True, model=model, text=text, as_json=True, **options)
    return pandas.DataFrame(
        {"text": line["text"], "mask": number} | token
        for line in json.loads(output)
        for number, tokens in enumerate(line["masks"])
        for token in tokens
    )
