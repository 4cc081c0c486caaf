"""Where the files of a data set lie: what its reader asks for, and how a folder answers (a URL: remote_storage.py)."""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from data_prep.errors import DamagedData, MissingDataSet, UnusableInput, working_directory
from data_prep.files import map_file, open_plain, read_into
from data_prep.folder_kinds import kind_of, not_a
from data_prep.format import shard_format
from data_prep.format.shard_format import Manifest, ShardInfo, TokenizerInfo, parse_manifest, xxh3

STAT_THREADS = 16
RESTORE = "restore it or prepare the data set again"


class Span(NamedTuple):
    """Bytes of a shard's tar with their checksum; `what` they are, for messages."""

    shard: ShardInfo
    offset: int
    size: int
    xxh3: int
    what: str


class LocalStorage:
    """A data set in a folder. Between two calls no file is open or mapped, whatever the number of shards.

    RemoteStorage has the same methods. They may be called from any thread, and raise UserError or DamagedData.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards = str(folder / "shards")

    def place(self, name: str) -> str:
        """A file of `shards/`, as messages name it."""
        return f"{self._shards}/{name}"

    def manifest(self) -> Manifest:
        """manifest.json, read anew each time."""
        return read_manifest(self.folder)

    def tokenizer(self, info: TokenizerInfo) -> Path:
        """A local folder with the tokenizer's files."""
        return self.folder / "tokenizer"

    @contextlib.contextmanager
    def index(self, shard: ShardInfo, trusted: bool) -> Iterator[int]:
        """A descriptor of an index, which has the manifest's size and, unless it is `trusted`, SHA-256."""
        with self._opened(shard.index_name) as descriptor:
            if problem := index_problem(descriptor, shard, trusted):
                raise DamagedData(f"{self.place(shard.index_name)} {problem}")
            yield descriptor

    def read(self, span: Span, out: memoryview) -> None:
        """Read a span into `out` at once; raises unless the bytes have their checksum."""
        with self._opened(span.shard.name) as descriptor:
            there = read_into(descriptor, out, span.offset)
            size = os.fstat(descriptor).st_size
        path = self.place(span.shard.name)
        if there < span.size:
            raise DamagedData(
                f"{path} is cut short: it has {size} bytes, the manifest has {span.shard.bytes}; of the {span.what}, "
                f"{there} of {span.size} bytes are there; {RESTORE}."
            )
        check_span(path, span, out)

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Of these files of `shards/`, the bytes of each that is there (None: not told)."""
        try:
            with os.scandir(self._shards) as entries:
                there = {entry.name for entry in entries}
        except FileNotFoundError:
            there = set()
        listed = [name for name in names if name in there]
        with _errors(self._shards), ThreadPoolExecutor(STAT_THREADS) as pool:
            sizes = pool.map(_size, map(self.place, listed))
            return {name: size for name, size in zip(listed, sizes, strict=True) if size is not None}

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        path = self.place(name)
        with _errors(path), open_plain(path) as file:
            yield file.fileno()


def no_data_set(folder: str | Path, setting: str = "the path") -> str:
    """The message for a data set folder that does not exist. `setting` is what names it, such as data.train."""
    where = f"{folder}{working_directory(folder)}"
    return f"No data set at {where}. Create it with `maskwright prep run`, or correct {setting}."


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a data set folder; raises UserError where there is none or it does not follow the format."""
    path = folder / "manifest.json"
    if not folder.exists():
        raise MissingDataSet(no_data_set(folder))
    if not path.is_file() and (folder / "train" / "manifest.json").is_file():
        raise UnusableInput(f"{folder} holds two data sets; name {folder / 'train'} or {folder / 'valid'}.")
    kind = kind_of(folder)
    if not path.is_file() and kind == "an unfinished data set folder":
        raise UnusableInput(f"{folder} is {kind} (no manifest.json). Run `maskwright prep run` to its end.")
    if not path.is_file() or kind == "a checkpoint":
        raise not_a(folder, "a data set folder", "Name the folder that `maskwright prep run --out` wrote.")
    with _errors(str(path)), open_plain(path) as file:
        return parse_manifest(str(path), file.read(shard_format.MAX_MANIFEST_BYTES + 1))


def index_problem(descriptor: int, shard: ShardInfo, trusted: bool) -> str | None:
    """What is wrong with an open index, size and (unless `trusted`) SHA-256 against the manifest; None if nothing."""
    if (size := os.fstat(descriptor).st_size) != shard.index_bytes:
        return f"has {size} bytes, the manifest has {shard.index_bytes}; {RESTORE}."
    if trusted:
        return None
    found = hashlib.sha256(map_file(descriptor) if size else b"").hexdigest()
    if found != shard.index_sha256:
        return f"is damaged: its SHA-256 is {found[:16]}..., the manifest has {shard.index_sha256[:16]}...; {RESTORE}."
    return None


def check_span(place: str, span: Span, data: bytes | memoryview) -> None:
    """Raise DamagedData unless `data` has the checksum of the span, read from the shard at `place`."""
    if (found := xxh3(data)) != span.xxh3:
        raise DamagedData(
            f"{place} is damaged: the {span.what} have checksum {found:016x} instead of {span.xxh3:016x}; "
            "restore the file or prepare the data set again."
        )


def _size(path: str) -> int | None:
    """The bytes of a regular file; None if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def _errors(place: str) -> Iterator[None]:
    """What the system says of a file, in one sentence; what only the data set's owner can mend is DamagedData."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedData(f"{place} is missing; {RESTORE}.") from None
    except OSError as error:
        kind = DamagedData if error.errno == errno.EIO else UnusableInput
        raise kind(f"{place} cannot be read: {error.strerror}.") from error
