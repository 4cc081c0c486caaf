"""Storage of a data set in a folder. remote_storage.py has the same interface for URLs."""

import contextlib
import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from data_prep.common.errors import DamagedData, MissingDataSet, UnusableInput
from data_prep.common.files import open_plain, read_into
from data_prep.format import manifest as manifest_file
from data_prep.format.manifest import Manifest, ShardInfo, TokenizerInfo, parse_manifest
from data_prep.format.shard_format import xxh3
from data_prep.storage import not_a

STAT_THREADS = 16
RESTORE = "restore it or prepare the data set again"


class ShardSpan(NamedTuple):
    """Bytes of a shard's tar with their checksum. `what` describes them in messages."""

    shard: ShardInfo
    offset: int
    size: int
    xxh3: int
    what: str


class LocalStorage:
    """A data set in a folder. Between two calls no file is open or mapped.

    All methods are safe to call from any thread. They raise UserError or DamagedData.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards = str(folder / "shards")

    def name_of(self, name: str) -> str:
        """Path or URL of a file of `shards/`, for messages."""
        return f"{self._shards}/{name}"

    def manifest(self) -> Manifest:
        """Read manifest.json. Raises UserError if it is missing or does not follow the format."""
        folder, path = self.folder, self.folder / "manifest.json"
        if not folder.exists():
            raise MissingDataSet(folder)
        if not path.is_file() and (folder / "train" / "manifest.json").is_file():
            raise UnusableInput(f"{folder} holds two data sets; name {folder / 'train'} or {folder / 'valid'}.")
        if not path.is_file() or (folder / "deepspeed").is_dir():  # a checkpoint has a manifest.json too
            raise not_a(folder, "a data set folder", "Name the folder that `maskwright prep run --out` wrote.")
        with _errors(str(path)), open_plain(path) as file:
            return parse_manifest(str(path), file.read(manifest_file.MAX_MANIFEST_BYTES + 1))

    def tokenizer(self, info: TokenizerInfo) -> Path:
        """A local folder with the tokenizer's files."""
        return self.folder / "tokenizer"

    @contextlib.contextmanager
    def index(self, shard: ShardInfo, trusted: bool) -> Iterator[int]:
        """A descriptor of an index with the manifest's size. Unless `trusted`, its SHA-256 is checked too."""
        with self._opened(shard.index_name) as descriptor:
            if problem := index_problem(descriptor, shard, trusted):
                raise DamagedData(f"{self.name_of(shard.index_name)} {problem}")
            yield descriptor

    def read(self, span: ShardSpan, out: memoryview) -> None:
        """Read a span into `out`; raises DamagedData unless the bytes have their checksum."""
        with self._opened(span.shard.name) as descriptor:
            n_bytes = read_into(descriptor, out, span.offset)
            size = os.fstat(descriptor).st_size
        path = self.name_of(span.shard.name)
        if n_bytes < span.size:
            raise DamagedData(
                f"{path} is cut short: it has {size} bytes, the manifest has {span.shard.bytes}; of the {span.what}, "
                f"{n_bytes} of {span.size} bytes are left; {RESTORE}."
            )
        check_block_checksums(path, span, out)

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Sizes (None: unknown) of these files of `shards/`, by name, without files that do not exist."""
        names = list(names)
        with _errors(self._shards), ThreadPoolExecutor(STAT_THREADS) as pool:
            sizes = pool.map(_size, map(self.name_of, names))
            return {name: size for name, size in zip(names, sizes, strict=True) if size is not None}

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        path = self.name_of(name)
        with _errors(path), open_plain(path) as file:
            yield file.fileno()


def index_problem(descriptor: int, shard: ShardInfo, trusted: bool) -> str | None:
    """The difference of an open index to the manifest, in size or (unless `trusted`) SHA-256; None if it is sound."""
    if (size := os.fstat(descriptor).st_size) != shard.index_bytes:
        return f"has {size} bytes, the manifest has {shard.index_bytes}; {RESTORE}."
    if trusted:
        return None
    digest = hashlib.sha256(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if size else b"").hexdigest()
    if digest != shard.index_sha256:
        return f"is damaged: its SHA-256 is {digest[:16]}..., the manifest has {shard.index_sha256[:16]}...; {RESTORE}."
    return None


def check_block_checksums(path: str, span: ShardSpan, data: bytes | memoryview) -> None:
    """Raise DamagedData unless `data` has the checksum of the span. `path` names its shard in the message."""
    if (computed := xxh3(data)) != span.xxh3:
        raise DamagedData(
            f"{path} is damaged: the {span.what} have checksum {computed:016x} instead of {span.xxh3:016x}; {RESTORE}."
        )


def _size(path: str) -> int | None:
    """Size of a regular file; None if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turn an OSError into DamagedData if the file must be restored, else into UnusableInput."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedData(f"{path} is missing; {RESTORE}.") from None
    except OSError as error:
        kind = DamagedData if error.errno == errno.EIO else UnusableInput
        raise kind(f"{path} cannot be read: {error.strerror}.") from error
