"""Remote copies of checkpoints (checkpoint.remote), in case the run folder is lost.

A copy is a folder with the same name and files. Its manifest is written last, by a rename, and deleted first. So a
remote folder with a manifest is complete. All hosts share the run folder, so rank 0 copies all files.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import fsync_path, fsync_tree
from data_prep.common.urls import Remote, open_remote, redact, shown
from pretrain.checkpoint.manifest import MAX_MANIFEST_BYTES, NAME, Checkpoint, parse, read, verify
from pretrain.checkpoint.retention import retained, step_of
from pretrain.config import CheckpointConfig
from pretrain.run import step_name

_PARTIAL = "manifest.partial.json"
_ASIDE = "manifest.aside.json"


class RemoteCopies:
    """Copies checkpoints in a separate thread; only the newest one, if the remote is slower than the run.

    Args:
        settings: config section `checkpoint`.
        after_step: the step from which the run resumes: copies of later steps no longer count as its checkpoints.
        start: the checkpoint of that step, if the run folder has it. It is copied now if it has no complete copy, for
            example because a kill interrupted the copy.
        upload: copies one checkpoint.
        close_seconds: how long the end of a run waits for the last copy.
    """

    def __init__(
        self,
        settings: CheckpointConfig,
        after_step: int,
        start: Path | None = None,
        upload: Callable[[Remote, Path], None] | None = None,
        close_seconds: float = 300.0,
    ):
        assert settings.remote is not None
        self._url, self._settings = settings.remote, settings
        self._upload, self._close_seconds = upload or upload_copy, close_seconds
        self._aside_after: int | None = after_step
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="remote")
        self._copies: dict[Path, Future[str | None]] = {}  # each returns the problem or None
        if start:
            self.push(start)

    def push(self, path: Path) -> None:
        """Queue a committed checkpoint for copying, and return immediately. It replaces one that waits."""
        for copy in self._copies.values():
            copy.cancel()
        self._copies[path] = self._thread.submit(self._copy, path)

    def needed(self) -> set[Path]:
        """The checkpoints that may not be deleted, because their copy is queued or in progress."""
        return {path for path, copy in self._copies.items() if not copy.done()}

    def report_failures(self, report: Callable[[int, dict[str, float]], None]) -> None:
        """Warn of copies that failed since the last call; the next checkpoint is copied as usual."""
        for path in sorted(self._copies.keys() - self.needed()):
            copy, step = self._copies.pop(path), step_of(path.name) or 0
            if not copy.cancelled() and (problem := copy.result()):
                print(f"warning: the checkpoint of step {step} was not copied: {problem}", file=sys.stderr, flush=True)
                report(step, {"checkpoint/remote_failed": 1.0})

    def wait(self) -> None:
        """Wait for the queued copies, some minutes at most."""
        wait(self._copies.values(), self._close_seconds)

    def close(self) -> None:
        """Wait for the last copy, some minutes at most."""
        self.wait()
        for path in self.needed():
            print(f"warning: {path.name} is not copied to {_named(self._url)} yet", file=sys.stderr, flush=True)
        self.report_failures(lambda step, metrics: None)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _copy(self, path: Path) -> str | None:
        try:
            with _errors(self._url):
                remote = open_remote(self._url)
                if self._aside_after is not None:
                    _set_aside(remote, self._aside_after)
                    _remove_partial(remote)
                    self._aside_after = None
                if not _is_copied(remote, path):
                    self._upload(remote, path)
                _prune(remote, self._settings)
        except UserError as error:
            return str(error)
        return None


def copies(url: str) -> list[int]:
    """The steps of the complete copies, newest first.

    Raises UserError if the remote cannot be reached.
    """
    with _errors(url):
        return _steps(open_remote(url))


def fetch_newest(url: str, folder: Path, report: Callable[[str], None]) -> Path | None:
    """Fetch the newest intact copy into RUN/checkpoints; None if there is no copy.

    Args:
        report: called with a message for each download and each damaged copy.

    Raises UserError if the remote cannot be reached, or all copies are damaged.
    """
    problems = []
    with _errors(url):
        remote = open_remote(url)
        for step in _steps(remote):
            report(f"fetching {step_name(step)} from {_named(url)}")
            temporary = folder / f"{step_name(step)}.tmp"
            shutil.rmtree(temporary, ignore_errors=True)  # of a download that was killed
            problem = _download(remote, step, temporary) or verify(temporary)
            if problem is None:
                fsync_tree(temporary)
                final = temporary.rename(folder / step_name(step))
                fsync_path(folder)
                return final
            shutil.rmtree(temporary, ignore_errors=True)
            problems.append(problem)
            report(f"the copy of {step_name(step)} is damaged and skipped: {problem}")
    if problems:
        raise UserError(
            f"{_named(url)}: no copy is intact ({problems[0]}); restore one, or take checkpoint.remote away"
        )
    return None


def _steps(remote: Remote) -> list[int]:
    return sorted((step for step, path in _folders(remote) if remote.fs.exists(f"{path}/{NAME}")), reverse=True)


def _folders(remote: Remote) -> list[tuple[int, str]]:
    """Step and path of each copy, complete or not."""
    remote.fs.invalidate_cache()
    try:
        paths = remote.fs.ls(remote.path, detail=False)
    except FileNotFoundError:
        return []
    steps = [(step_of(path.rstrip("/").rpartition("/")[2]), path) for path in paths]
    return [(step, path) for step, path in steps if step is not None]


def _path(remote: Remote, step: int) -> str:
    return f"{remote.path.rstrip('/')}/{step_name(step)}"


def upload_copy(remote: Remote, path: Path) -> None:
    """Copy a checkpoint, in place of a copy that is incomplete or from an earlier attempt."""
    checkpoint = read(path)
    target = _path(remote, checkpoint.step)
    if remote.fs.exists(target):
        _remove(remote, target)
    for name in sorted(checkpoint.files):
        remote.fs.makedirs(f"{target}/{name}".rpartition("/")[0], exist_ok=True)
        remote.fs.put_file(str(path / name), f"{target}/{name}")
    remote.fs.put_file(str(path / NAME), f"{target}/{_PARTIAL}")  # an incomplete upload must not look like a manifest
    remote.fs.mv(f"{target}/{_PARTIAL}", f"{target}/{NAME}")


def _is_copied(remote: Remote, path: Path) -> bool:
    manifest = f"{_path(remote, step_of(path.name) or 0)}/{NAME}"
    return bool(remote.fs.exists(manifest) and remote.fs.cat_file(manifest) == (path / NAME).read_bytes())


def _remove_partial(remote: Remote) -> None:
    """Remove incomplete copies that killed processes left behind."""
    for _, target in _folders(remote):
        if not any(remote.fs.exists(f"{target}/{name}") for name in (NAME, _ASIDE)):
            remote.fs.rm(target, recursive=True)


def _prune(remote: Remote, settings: CheckpointConfig) -> None:
    steps = _steps(remote)
    for step in set(steps) - retained(steps, settings).keys():
        _remove(remote, _path(remote, step))


def _remove(remote: Remote, target: str) -> None:
    if remote.fs.exists(f"{target}/{NAME}"):
        remote.fs.rm_file(f"{target}/{NAME}")
    remote.fs.rm(target, recursive=True)


def _set_aside(remote: Remote, after_step: int) -> None:
    """Rename the manifests of copies of later steps, so that they no longer count as copies."""
    for step in _steps(remote):
        if step > after_step:
            target = _path(remote, step)
            remote.fs.mv(f"{target}/{NAME}", f"{target}/{_ASIDE}")


def _download(remote: Remote, step: int, temporary: Path) -> str | None:
    """Download a copy; return the problem with it, or None."""
    source = _path(remote, step)
    try:
        if (remote.fs.size(f"{source}/{NAME}") or 0) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES} bytes")
        content = remote.fs.cat_file(f"{source}/{NAME}")
        checkpoint: Checkpoint = parse(content, temporary)
    except ValueError as error:
        return f"{source}/{NAME} cannot be used: {error}"
    temporary.mkdir()
    for name in checkpoint.files:
        if not remote.fs.exists(f"{source}/{name}"):
            return f"{source}/{name} is missing"
        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
        remote.fs.get_file(f"{source}/{name}", str(temporary / name))
    (temporary / NAME).write_bytes(content)
    return None


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    """Turn any error of the file system into a UserError of one line without secrets."""
    try:
        yield
    except UserError as error:
        raise UserError(redact(str(error))) from None
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"{_named(url)}: {redact(f'{type(error).__name__}: {reason}')}") from None


def _named(url: str) -> str:
    return redact(shown(url))
