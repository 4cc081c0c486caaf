"""Record the fsyncs and renames of a block of code, and check that what it wrote survives a power failure."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Place = tuple[int, int]  # device and inode: what stays the same when a file gets another name


@dataclass
class Writes:
    """File operations of a block of code, in order. `before` are the paths that existed before."""

    root: Path
    before: set[Path] = field(default_factory=set)
    syncs: list[tuple[int, Place, int]] = field(default_factory=list)  # when, of what, its size then
    renames: list[tuple[int, Path]] = field(default_factory=list)  # when, to what
    folders: list[tuple[int, Path]] = field(default_factory=list)  # when, which was made
    clock: int = 0

    def sync(self, status: os.stat_result) -> None:
        self.clock += 1
        self.syncs.append((self.clock, (status.st_dev, status.st_ino), status.st_size))

    def name(self, path: Path, is_new_folder: bool) -> None:
        self.clock += 1
        (self.folders if is_new_folder else self.renames).append((self.clock, path))

    def before_rename(self, target: Path) -> "Writes":
        """Those that came before `target` got its name."""
        end = next(when for when, to in self.renames if to == target)
        syncs = [one for one in self.syncs if one[0] < end]
        renames, folders = ([one for one in them if one[0] < end] for them in (self.renames, self.folders))
        return Writes(self.root, self.before, syncs, renames, folders, end)

    def problems(self, ignored: Callable[[Path], bool] = lambda path: False) -> list[str]:
        """New files and folders below the root that a power failure can delete; empty if all are durable."""
        new = [path for path in sorted(self.root.rglob("*")) if path not in self.before and not ignored(path)]
        return [problem for path in new for problem in self._problems_of(path)]

    def _problems_of(self, path: Path) -> Iterator[str]:
        """Content, then the name it was given, then the names that the folders above it were given."""
        name = path.relative_to(self.root)
        own = [when for when, target in self.renames if target == path][-1:]
        above = [(when, target) for when, target in self.renames if target in path.parents and target != self.root]
        first_rename = min([*own, *(when for when, _ in above)], default=self.clock + 1)
        written = 0
        if stat.S_ISREG(path.stat().st_mode):
            written = self._synced(path, 0, first_rename, path.stat().st_size)
            if not written:
                yield f"{name}: no fsync of all its bytes before its rename"
        made = [when for when, folder in self.folders if folder == path][:1]
        named = max([written, *own, *made])
        if not self._synced(path.parent, named, min([when for when, _ in above], default=self.clock + 1)):
            yield f"{name}: no fsync of its folder after it got its name"
        for when, target in above:
            if not self._synced(target.parent, when, self.clock + 1):
                yield f"{name}: no fsync of {target.parent} after the rename to {target.name}"

    def _synced(self, path: Path, after: int, before: int, size: int | None = None) -> int:
        """The time when `path` was synced between two moments, with this size; 0 if it was not."""
        place = (path.stat().st_dev, path.stat().st_ino)
        found = (when for when, of, had in self.syncs if of == place and size in (None, had))
        return next((when for when in found if after < when < before), 0)


_NAMED_BY = {"os.rename": 1, "os.mkdir": 0}  # the argument that has the name; os.replace raises os.rename, too
_recording: list[Writes] = []
_installed: list[bool] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _recording and event in _NAMED_BY:
        path = Path(os.fsdecode(arguments[_NAMED_BY[event]]))  # type: ignore[arg-type]
        _recording[-1].name(path.absolute(), event == "os.mkdir")


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Writes]:
    """Record what this process does below `root`, which is not itself renamed."""
    if not _installed:
        sys.addaudithook(_hear)  # for ever: Python cannot remove one
        _installed.append(True)
    writes = Writes(root, set(root.rglob("*")))
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        fsync(descriptor)
        writes.sync(os.fstat(descriptor))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", recording)
        _recording.append(writes)
        try:
            yield writes
        finally:
            _recording.remove(writes)
