"""Copies of the journal in TensorBoard's and Weights & Biases' files, while the run trains or afterwards."""

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.common.reading import json_or_none, open_regular, typed
from pretrain.run import JournalReader, RunFolder
from pretrain.tracking.journal_points import Point, SentSteps
from pretrain.tracking.run_record import RunRecord

_POLL_SECONDS = 2.0
_EVENT_FILES = "events.out.tfevents.*"
_STEP = "training step"  # the horizontal axis in W&B, whose own steps must not go back
CopyKind = Literal["tensorboard", "wandb"]


def copy_journal(run_dir: Path, kind: CopyKind, follow: bool) -> int:
    """Add to the copy in RUN/tensorboard or RUN/wandb what it lacks, and return the number of points added.

    May be repeated, killed and run during the training: the copy gets each point once.

    Args:
        follow: continue until the run ends.

    Raises UserError if the package is not installed, or the folder is not a run.
    """
    record, folder = RunRecord.require(run_dir), RunFolder(run_dir)
    if (place := run_dir / kind).is_symlink():  # files behind it would be changed and removed
        raise UserError(f"{place} is a symbolic link. Remove it, or put a folder there.")
    for file in place.glob(_EVENT_FILES):
        open_regular(file, follow=False).close()  # TensorBoard would wait for a pipe
    copy: TensorBoardCopy | WandbCopy
    try:
        copy = TensorBoardCopy(folder) if kind == "tensorboard" else WandbCopy(folder, record)
    except ImportError:
        raise UserError(f"{kind} is not installed. Run: python -m pip install {kind}") from None
    journal, added = JournalReader(folder.journal), 0
    with closing(copy):
        while True:
            is_over = not follow or folder.read_status().is_over  # read before the journal, whose end comes first
            for end, entry in journal.lines(copy.offset) if folder.journal.exists() else ():
                if entry and (points := copy.sent.take_new(entry)):
                    copy.write(points)
                    added += len(points)
                copy.offset = end
            copy.flush()
            if is_over:
                return added
            time.sleep(_POLL_SECONDS)


class TensorBoardCopy:
    """Event files in RUN/tensorboard. What they have is read from themselves, so a kill leaves no point twice.

    Attributes:
        sent: the points that the copy has. offset: bytes of the journal that need not be read again.
    """

    def __init__(self, folder: RunFolder):
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        self.sent, self.offset = SentSteps(), 0
        self._place = folder.path / "tensorboard"
        self._writer: Any = None  # made with the first point, so that a copy of nothing leaves no file
        for file in sorted(self._place.glob(_EVENT_FILES)):
            for event in LegacyEventFileLoader(str(file)).Load():
                self.sent.add(event.step, [value.tag for value in event.summary.value])

    def write(self, points: Sequence[Point]) -> None:
        """Add points of one step, at least one."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = self._writer or EventFileWriter(str(self._place))
        values = [Summary.Value(tag=point.name, simple_value=point.value) for point in points]
        self._writer.add_event(Event(step=points[0].step, wall_time=points[0].time, summary=Summary(value=values)))

    def flush(self) -> None:
        if self._writer:
            self._writer.flush()

    def close(self) -> None:
        if self._writer:
            self._writer.close()


class WandbCopy:
    """Offline runs in RUN/wandb, for `wandb sync`; all have one id, and so become one run.

    RUN/wandb/copied.json names the complete ones. A run of a killed copy is removed and written again.
    """

    def __init__(self, folder: RunFolder, record: RunRecord):
        import wandb

        self.sent, place = SentSteps(), folder.path / "wandb"
        place.mkdir(exist_ok=True)
        self._file = place / "copied.json"
        self.offset, self._complete = _copied(json_or_none(self._file, dict[str, Any]))
        for path in place.glob(f"offline-run-*-{record.key}"):
            if path.name not in self._complete and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        whole = 0
        for end, entry in JournalReader(folder.journal).lines(0, self.offset) if self.offset else ():
            whole = end
            if entry:
                self.sent.take_new(entry)
        if whole != self.offset:  # W&B's files cannot be changed
            raise UserError(f"{folder.journal} lost lines that {place} has. Move that folder away to copy all again.")
        options = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
        self._run = wandb.init(
            mode="offline",
            dir=str(folder.path),
            id=record.key,
            name=record.run_name,
            project=record.experiment,
            config=record.params,
            settings=options,
        )
        self._run.define_metric("*", step_metric=_STEP)
        self._written = 0

    def write(self, points: Sequence[Point]) -> None:
        finite = {point.name: point.value for point in points if math.isfinite(point.value)}
        self._run.log({_STEP: points[0].step, "_timestamp": points[0].time} | finite)
        self._written += 1

    def flush(self) -> None:
        """W&B writes its file in the background; it is complete when the copy is closed."""

    def close(self) -> None:
        made = Path(self._run.dir).parent
        self._run.finish()
        if self._written:
            write_json(self._file, {"offset": self.offset, "runs": [*self._complete, made.name]})
        else:
            shutil.rmtree(made)


def _copied(values: dict[str, Any] | None) -> tuple[int, list[str]]:
    """The offset and the names of the complete runs in copied.json; none if the file is missing or damaged."""
    try:
        return typed(int, (values or {})["offset"]), typed(list[str], (values or {})["runs"])
    except (KeyError, ValueError):
        return 0, []
