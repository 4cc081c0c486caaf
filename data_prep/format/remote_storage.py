"""Storage of a data set behind an fsspec URL: parts are fetched when they are read, checked, and cached."""

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from data_prep.common.errors import DamagedData, UserError
from data_prep.common.files import read_into, write_file
from data_prep.common.urls import Remote, open_remote, remote_errors, remote_version, retried, shown, true_error
from data_prep.format import manifest as manifest_file
from data_prep.format.local_storage import RESTORE, STAT_THREADS, ShardSpan, check_block_checksums, index_problem
from data_prep.format.manifest import Manifest, ShardInfo, TokenizerInfo, parse_manifest
from data_prep.format.shard_format import xxh3
from data_prep.storage import Cache

T = TypeVar("T")
_ABSENT = -1


class RemoteStorage:
    """A data set behind a URL. Indexes and blocks are entries of the cache, named by the checksums in the manifest.

    So they stay valid when the data set is moved, copied or extended. Each is checked before it enters the cache, a
    block also each time that it is read, and an index the first time that a process reads it.
    """

    def __init__(self, url: str, cache: Cache) -> None:
        if shown(url) != url:
            raise UserError(f"{shown(url)} has a query; give the plain URL of the data set's folder.")
        self.folder: Path | None = None
        self._url = url
        self._opened: tuple[int, Remote] | None = None
        self._cache = cache
        self._tokenizer_lock = threading.Lock()

    def name_of(self, name: str) -> str:
        return self._file(f"shards/{name}")[1]

    def manifest(self) -> Manifest:
        remote, place = self._file("manifest.json")
        remote.fs.invalidate_cache()
        limit = manifest_file.MAX_MANIFEST_BYTES + 1
        data = _unless_absent(place, lambda: remote.fs.cat_file(remote.path, start=0, end=limit))
        if data is None:
            raise UserError(
                f"There is no finished data set at {self._url}: {place} does not exist, or is not visible with your "
                "credentials."
            )
        return parse_manifest(place, data)

    def tokenizer(self, info: TokenizerInfo) -> Path:
        folder = self._cache.folder / "tokenizers" / info.sha256
        with self._tokenizer_lock:
            folder.mkdir(parents=True, exist_ok=True)
            for name, digest in info.files.items():
                if not (folder / name).is_file() or _sha256((folder / name).read_bytes()) != digest:
                    data = self._fetch(f"tokenizer/{name}")
                    if _sha256(data) != digest:
                        place = self._file(f"tokenizer/{name}")[1]
                        raise DamagedData(f"{place} is not the tokenizer of the data set; restore it.")
                    write_file(folder / name, data)
        return folder

    @contextlib.contextmanager
    def index(self, shard: ShardInfo, trusted: bool) -> Iterator[int]:
        key = _key("index", shard.index_sha256)
        fetch = functools.partial(self._fetch_index, shard)
        with contextlib.ExitStack() as stack:
            descriptor = stack.enter_context(self._cache.open(key, fetch))
            if index_problem(descriptor, shard, trusted):
                self._cache.drop(key)
                descriptor = stack.enter_context(self._cache.open(key, fetch))
                if problem := index_problem(descriptor, shard, trusted):
                    raise self._damaged_cache(f"{shard.index_name} {problem}")
            yield descriptor

    def read(self, span: ShardSpan, out: memoryview) -> None:
        key = _key("span", span.shard.sha256, span.offset, span.size, span.xxh3)
        for _ in range(2):
            with self._cache.open(key, functools.partial(self._fetch_span, span)) as descriptor:
                if read_into(descriptor, out, 0) == span.size and xxh3(out) == span.xxh3:
                    return
            self._cache.drop(key)
        raise self._damaged_cache(f"the {span.what}")

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """As in LocalStorage, from the listing of the folder. Without a listing or sizes, asks for each file."""
        remote, place = self._file("shards")
        remote.fs.invalidate_cache()
        listing = _unless_absent(place, lambda: remote.fs.ls(remote.path, detail=True)) or []
        listed = {entry["name"].rpartition("/")[2]: entry.get("size") for entry in listing if entry["type"] == "file"}
        sizes = {name: listed.get(name) for name in names}
        unknown = [name for name, size in sizes.items() if size is None]
        with ThreadPoolExecutor(STAT_THREADS) as pool:
            sizes |= dict(zip(unknown, pool.map(self._size, unknown), strict=True))
        return {name: size for name, size in sizes.items() if size != _ABSENT}

    def _size(self, name: str) -> int | None:
        """The size of a file of `shards/`, None if it is not known, _ABSENT if the file does not exist."""
        remote, place = self._file(f"shards/{name}")
        version = _unless_absent(place, lambda: remote_version(remote))
        return _ABSENT if version is None else version.size

    def _damaged_cache(self, what: str) -> UserError:
        return UserError(f"The cache folder {self._cache.folder} damages its files ({what}); use another disk.")

    def _fetch_index(self, shard: ShardInfo) -> bytes:
        data = self._fetch(f"shards/{shard.index_name}", (0, shard.index_bytes), shard.index_bytes)
        if (digest := _sha256(data)) != shard.index_sha256:
            raise DamagedData(
                f"{self.name_of(shard.index_name)} is damaged: its SHA-256 is {digest}, the manifest has "
                f"{shard.index_sha256}; {RESTORE}."
            )
        return data

    def _fetch_span(self, span: ShardSpan) -> bytes:
        data = self._fetch(f"shards/{span.shard.name}", (span.offset, span.size), span.shard.bytes)
        check_block_checksums(self.name_of(span.shard.name), span, data)
        return data

    def _fetch(self, name: str, part: tuple[int, int] | None = None, file_bytes: int | None = None) -> bytes:
        """A file, or its part (offset, size). Raises DamagedData if it is missing or does not have `file_bytes`."""
        remote, place = self._file(name)
        with remote_errors(place):
            try:
                return retried(lambda: _part(remote, place, part))
            except UserError:
                raise
            except Exception as error:
                if _is_absent(error):
                    raise DamagedData(
                        f"{place} is missing, or is not visible with your credentials; {RESTORE}."
                    ) from error
                with contextlib.suppress(Exception):  # the first error explains more
                    size = remote_version(remote).size
                    if size is not None and file_bytes is not None and size != file_bytes:
                        error = DamagedData(f"{place} has {size} bytes, the manifest has {file_bytes}; {RESTORE}.")
                raise error

    def _file(self, name: str) -> tuple[Remote, str]:
        """A file of the data set, and its URL for messages. A file system cannot be used after a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_remote(self._url)
        remote = self._opened[1]
        path = "/".join(filter(None, [remote.path.rstrip("/"), name]))
        return remote._replace(path=path), shown(remote.url(path))


def _part(remote: Remote, place: str, part: tuple[int, int] | None) -> Any:
    if part is None:
        return remote.fs.cat_file(remote.path)
    offset, size = part
    data = remote.fs.cat_file(remote.path, start=offset, end=offset + size)
    if len(data) > size:
        raise UserError(
            f"The server of {place} sends whole files where a part was asked for; copy the data set, or use a server "
            "that supports range requests."
        )
    if len(data) < size:
        raise OSError(f"{len(data)} of its {size} bytes from {offset} on arrived")
    return data


def _unless_absent(place: str, action: Callable[[], T]) -> T | None:
    """The result of `action`, retried. None if the file or folder does not exist, or a folder cannot be listed."""
    with remote_errors(place):
        try:
            return retried(action)
        except Exception as error:
            if _is_absent(error) or isinstance(error, NotImplementedError):
                return None
            raise


def _is_absent(error: Exception) -> bool:
    return isinstance(true_error(error), FileNotFoundError)


def _key(*parts: object) -> str:
    return xxhash.xxh3_128_hexdigest(" ".join(map(str, parts)).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
