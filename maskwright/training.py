"""Train a run, and read its state, metrics, report, checkpoints and model."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from data_prep.common.errors import UserError
from data_prep.common.reading import json_or_none
from data_prep.storage import require_run
from launchers.actions import PathLike, checked, override_words
from launchers.arguments import local
from launchers.display import HtmlPage, cell_output
from launchers.local import handlers_restored, train_locally
from pretrain.checkpoint import committed
from pretrain.config import View
from pretrain.config_files import load_config
from pretrain.reporting import LINE_SECONDS_VARIABLE
from pretrain.run import EXIT_CODES, REFUSAL_VARIABLE, JournalTable, RunFolder, Status

if TYPE_CHECKING:
    import pandas


class Run:
    """A run folder.

    Raises:
        UserError: it is not a run folder.
    """

    def __init__(self, path: PathLike) -> None:
        require_run(Path(path))
        self._folder = RunFolder(Path(path))

    def __repr__(self) -> str:
        status = self.status
        return f"Run({str(self.path)!r}): {status.state}, step {status.step:,} of {status.total_steps:,}"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The folder, run.dir of the config."""
        return self._folder.path

    @property
    def status(self) -> Status:
        """How far the run is: state, step, total_steps, reason and next_action.

        Raises:
            UserError: it has not started.
        """
        return self._folder.read_status()

    @property
    def metrics(self) -> "pandas.DataFrame":
        """The metrics so far: a row for each step with any, a column for each metric; NaN where it was not measured.

        If a step was trained twice, the values are from the second time.

        Raises:
            UserError: it has not recorded a step.
        """
        try:
            table = JournalTable.read(self._folder.journal)
        except OSError as error:
            raise UserError(f"{self._folder.journal} cannot be read ({error.strerror}). Train the run first.") from None
        if table.torn:
            print(f"{self._folder.journal}: {table.torn} lines are damaged and left out", file=sys.stderr)
        return table.frame()

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The folders of the checkpoints by step, the newest last."""
        return dict(sorted(committed(self._folder.checkpoints)))

    def report(self, out: PathLike | None = None) -> HtmlPage:
        """Write the HTML page of the run, as `maskwright report` does; a notebook shows it.

        Args:
            out: the file; RUN/report.html by default.

        Raises:
            UserError: the run has no readable journal, or the file cannot be written.
        """
        from pretrain.reporting import collect, write_page

        place = Path(out or self._folder.report)
        write_page(collect(self.path, place), place)
        return HtmlPage(place)

    @checked
    def export(
        self, out: PathLike | None = None, *, step: int | None = None, view: View | None = None, ema: bool = False
    ) -> Path:
        """Write a checkpoint as a Hugging Face model folder, as `maskwright export` does.

        Args:
            out: the folder, which must be new; by default one in RUN/exports, which is kept if it is there.
            step: of the checkpoint; the newest by default.
            view: of a mixture of objectives, "bidirectional", "causal" or "prefix".
            ema: the averaged weights (optim.ema).

        Returns:
            The folder. `transformers.AutoModelForMaskedLM.from_pretrained` loads it.

        Raises:
            UserError: there is no such checkpoint, it is damaged, or `out` cannot be written.
        """
        from pretrain.export import export_run, exported_folder

        require_run(self.path)
        if out is not None or not self.checkpoints:
            return export_run(self.path, step, None if out is None else local(os.fspath(out)), ema, view)
        return exported_folder(self.path, max(self.checkpoints) if step is None else step, view, ema)


@checked
def train(
    config: PathLike, overrides: Mapping[str, Any] | None = None, procs: Annotated[int, Field(ge=1)] | None = None
) -> Run:
    """Train on this machine, as `maskwright train` does. After a stop or a crash, the same call resumes.

    Ctrl-C, which is also "Interrupt the kernel" of a notebook, has the run save a checkpoint; then KeyboardInterrupt is
    raised. A second one ends the run immediately. A run that is complete is not trained again.

    Args:
        config: a config file.
        overrides: values that replace values of the file, by their keys, such as `{"train.steps": 200}`.
        procs: training processes; by default one for each GPU, or one on the CPU.

    Returns:
        The run: completed, or stopped by `maskwright stop` or SIGTERM.

    Raises:
        UserError: the config cannot be used, or the run failed.
    """
    words = override_words(overrides)
    folder = load_config(Path(config), words).run.dir
    show = cell_output()
    with TemporaryDirectory() as temporary, handlers_restored():
        refusal = Path(temporary) / "refusal.json"
        variables = {REFUSAL_VARIABLE: str(refusal), **({LINE_SECONDS_VARIABLE: "1"} if show else {})}
        code = train_locally(Path(config), words, procs, variables, show)
        refused = json_or_none(refusal, dict[str, Any])
    if refused:
        raise UserError(str(refused.get("reason")))
    run = Run(folder)
    if code == EXIT_CODES["failed"]:
        raise UserError(f"{run.path} failed: {run.status.reason}; {run.status.next_action}")
    if code and "Ctrl-C" in run.status.reason:
        raise KeyboardInterrupt(f"{run.path}: {run.status.reason}; {run.status.next_action}")
    return run
