"""Data sets behind URLs: each part is fetched once, checked, kept within the size limit, and shared by processes."""

import concurrent.futures
import errno
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import fsspec
import numpy as np
import pytest

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset
from data_prep.inspection import document, summary
from data_prep.storage import Cache
from tests.support.datasets import random_dataset
from tests.support.in_process import invoke
from tests.support.web import serving
from tests.support.wordpiece_set import SHIP, source, wordpiece_set


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch):
    monkeypatch.setattr("data_prep.common.urls.BACKOFF_SECONDS", 0.01)


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Dataset:
    """Three shards of some blocks of about 2 kB."""
    return random_dataset(tmp_path_factory.mktemp("local") / "set", shard_bytes=12_000)


@pytest.fixture
def web(local, tmp_path):
    shutil.copytree(local.path, tmp_path / "served" / "set", copy_function=shutil.copyfile)  # files that can be written
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture
def remote(web, tmp_path) -> Dataset:
    return Dataset(f"{web.url}/set", Cache(tmp_path / "cache"))


@pytest.fixture
def memory():
    """A file system in memory, whose folder /bucket is removed."""
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/bucket", recursive=True)


def pieces(tmp_path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache" / "entries").iterdir())


def served(web, dataset, block) -> Path:
    return web.folder / "set" / "shards" / dataset.shard(block).name


def all_tokens(dataset: Dataset) -> list[list[int]]:
    return [dataset.tokens(block).tolist() for block in range(dataset.n_blocks)]


@pytest.mark.parametrize("prefix", ["##", None])
def test_everything_is_as_in_a_folder(tmp_path, memory, prefix):
    tasks = [[SHIP] * 5, [SHIP[:2]] * 4, [[5, 1, 6], [10, 8, 9, 9]]]
    sources = [source("a.jsonl", "sea", 0, 2, 9, 33), source("b.jsonl", "land", 2, 1, 2, 7)]
    local, cache = wordpiece_set(tmp_path / "set", tasks, sources, prefix), Cache(tmp_path / "cache")
    memory.put(str(local.path), "/bucket/set", recursive=True)
    remote = Dataset("memory://bucket/set/", cache)
    assert remote.manifest == local.manifest
    remote.check_files()
    remote.check_indexes()
    for block in range(local.n_blocks):
        for read in ("tokens", "document_lengths", "document_ends", "word_starts", "ids", "key", "n_tokens"):
            np.testing.assert_array_equal(getattr(remote, read)(block), getattr(local, read)(block))
    np.testing.assert_array_equal(remote.begins_word, local.begins_word)
    copied, given = ((data.tokenizer_path / "tokenizer.json").read_bytes() for data in (remote, local))
    assert copied == given
    assert summary(remote) == summary(local)
    assert document(remote, 10).text == document(local, 10).text
    with pytest.raises(UserError, match=r"There is no finished data set at memory://bucket/: .*manifest\.json"):
        Dataset("memory://bucket/", cache)
    with pytest.raises(UserError, match="memory://bucket/set/ is not on this machine"):
        _ = remote.path


def test_local_and_chained_urls(local, tmp_path):
    assert Dataset(f"file://{local.path}").path == local.path
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        for path in local.path.rglob("*.*"):
            file.write(path, path.relative_to(local.path))
    for url in (f"zip://::file://{tmp_path}/z.zip", f"zip:///::file://{tmp_path}/z.zip"):
        zipped = Dataset(url, Cache(tmp_path / "cache"))
        zipped.check_files()
        assert all_tokens(zipped) == all_tokens(local)


def test_what_is_fetched(local, remote, web, tmp_path):
    assert [path for path, _ in web.gets] == ["/set/manifest.json"]
    web.gets.clear()
    record = local.table[1]
    assert remote.tokens(1).tolist() == local.tokens(1).tolist()
    start, size = int(record["tokens_offset"]), 2 * int(record["tokens"])
    index_bytes = local.manifest.shards[0].index_bytes
    assert web.gets == [
        ("/set/shards/00000-00000.index", f"bytes=0-{index_bytes - 1}"),
        ("/set/shards/00000-00000.tar", f"bytes={start}-{start + size - 1}"),
    ]
    web.gets.clear()
    remote.tokens(1), remote.document_lengths(1), remote.document_lengths(0)
    again = Dataset(f"{web.url}/set", Cache(tmp_path / "cache"))
    assert again.tokens(1).tolist() == local.tokens(1).tolist()
    assert [path for path, _ in web.gets] == ["/set/manifest.json"]  # it may have been replaced
    web.gets.clear()
    assert all_tokens(again) == all_tokens(local)
    assert len(web.gets) == local.n_blocks - 1 + len(local.manifest.shards) - 1
    # A moved copy shares the pieces.
    (web.folder / "set").rename(web.folder / "moved")
    web.gets.clear()
    assert all_tokens(Dataset(f"{web.url}/moved", Cache(tmp_path / "cache"))) == all_tokens(local)
    assert len(web.gets) == 1


def test_passing_failures_are_tried_again(local, remote, web, tmp_path):
    for block, name in enumerate(("cuts", "failures", "cuts")):
        setattr(web, name, 2)
        assert remote.tokens(block).tolist() == local.tokens(block).tolist()
        assert getattr(web, name) == 0
    web.cuts = 1
    assert Dataset(f"{web.url}/set", Cache(tmp_path / "other")).n_blocks == local.n_blocks


def test_lasting_failures_are_one_sentence(remote, web, tmp_path):
    remote.n_tokens(0)
    web.failures = 1000
    with pytest.raises(UserError, match=r"00000-00000\.tar cannot be read: the server answered 503") as caught:
        remote.tokens(0)
    assert not isinstance(caught.value, DamagedData)
    web.failures, web.cuts = 0, 1000
    with pytest.raises(UserError, match=r"00000-00000\.tar cannot be read: "):
        remote.tokens(0)
    with pytest.raises(UserError, match=r"set/manifest\.json cannot be read: "):
        Dataset(f"{web.url}/set", Cache(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"There is no finished data set at .*/none: .*manifest\.json does not exist"):
        Dataset(f"{web.url}/none")
    assert all(not path.name.startswith(".") for path in pieces(tmp_path))


def test_a_server_without_ranges(remote, web):
    web.ranges = False
    assert remote.n_tokens(0)  # an index is a whole file
    with pytest.raises(UserError, match=r"sends whole files where a part was asked for; copy the data set"):
        remote.tokens(0)
    assert sum(path.endswith(".tar") for path, _ in web.gets) == 1


def test_damage_at_the_server_is_named_and_not_kept(local, remote, web, tmp_path):
    path = served(web, local, 0)
    sound, offset = path.read_bytes(), int(local.table[0]["tokens_offset"])
    path.write_bytes(sound[: offset + 4] + bytes([sound[offset + 4] ^ 1]) + sound[offset + 5 :])
    with pytest.raises(DamagedData, match=rf"{web.url}/set/shards/{path.name} is damaged: the tokens of block 00000_"):
        remote.tokens(0)
    index = path.with_suffix(".index")
    path.write_bytes(sound)
    altered = index.read_bytes()[:-1] + b"\xff"
    index.write_bytes(altered)
    other = Dataset(f"{web.url}/set", Cache(tmp_path / "other"))
    with pytest.raises(DamagedData, match=rf"{index.name} is damaged: its SHA-256 is"):
        other.tokens(0)
    assert not list((tmp_path / "other" / "entries").iterdir())
    assert remote.tokens(0).tolist() == local.tokens(0).tolist()


@pytest.mark.parametrize("keep", [0, 600, 2500])
def test_short_and_missing_files_at_the_server(local, remote, web, keep):
    path = served(web, local, 0)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedData, match=f"{path.name} has {keep} bytes, the manifest has {size}"):
        remote.tokens(0)
    with pytest.raises(DamagedData, match=f"{path.name} has {keep} bytes, the manifest has {size}"):
        remote.check_files()
    path.unlink()
    with pytest.raises(DamagedData, match=f"{path.name} is missing"):
        remote.tokens(0)
    path.with_suffix(".index").unlink()
    with pytest.raises(DamagedData, match=f"{path.name} is missing, and 1 more of"):
        remote.check_files()


def test_damaged_pieces_are_fetched_once_more(local, remote, web, tmp_path):
    expected = all_tokens(local)
    assert all_tokens(remote) == expected
    fetched = pieces(tmp_path)
    assert len(fetched) == local.n_blocks + len(local.manifest.shards)
    for damage in (lambda data: data[:-1], lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], lambda data: b""):
        for path in fetched:
            path.write_bytes(damage(path.read_bytes()))
        web.gets.clear()
        again = Dataset(f"{web.url}/set", Cache(tmp_path / "cache"))
        assert all_tokens(again) == expected
        assert len(web.gets) == len(fetched) + 1
        assert all_tokens(again) == expected
        assert len(web.gets) == len(fetched) + 1


def test_a_cache_folder_that_cannot_be_or_damages_what_it_is_given(remote, web, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"The cache folder .* cannot be used: Not a directory"):
        Dataset(f"{web.url}/set", Cache(tmp_path / "file")).tokens(0)
    write_bytes = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: write_bytes(path, b"\xff" * len(data)))
    with pytest.raises(UserError, match="damages its files"):
        remote.n_tokens(0)


def key(name: str) -> str:
    return name * 32


def use(cache: Cache, name: str, size: int, fetched: list[str]) -> bytes:
    def fetch() -> bytes:
        fetched.append(name)
        return name.encode() * size

    with cache.open(key(name), fetch) as descriptor:
        return os.pread(descriptor, 10_000, 0)


def test_the_least_recently_used_pieces_make_room(tmp_path):
    cache, fetched = Cache(tmp_path, 2500), []
    for name in "abacacb":
        assert use(cache, name, 1000, fetched) == name.encode() * 1000
        time.sleep(0.01)
    assert "".join(fetched) == "abcb"
    ended = f"{os.uname().nodename}.{2**22 + 1}.tmp"  # of a process that has exited
    left_over = tmp_path / "entries" / f".{key('a')}-7-part.{ended}"
    others = [tmp_path / "entries" / name for name in ("x", ".profile", f".x.{ended}")]
    for path in (left_over, *others):
        path.write_bytes(b"x" * 700)
        os.utime(path, (0, 0))
    (tmp_path / "locks" / "bytes").write_text("nonsense")
    assert use(cache, "d", 1500, fetched) == b"d" * 1500
    assert not left_over.exists()
    left = {*(tmp_path / "entries").iterdir()}
    assert {*others} < left, "only files of the cache are removed"
    assert {path.name[0] for path in left - {*others}} == {"b", "d"}
    assert sum(path.stat().st_size for path in left - {*others}) <= 2500
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "locks" / "bytes").unlink()
    (tmp_path / "locks" / "bytes").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="bytes is a symbolic link"):
        use(cache, "e", 10, fetched)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_full_disk_makes_the_cache_give_way(tmp_path, monkeypatch):
    cache, fetched, write_bytes = Cache(tmp_path, 10_000), [], Path.write_bytes
    for name in "abcd":
        use(cache, name, 1000, fetched)
    most = 2

    def full(path, data):
        if len(list((tmp_path / "entries").glob("[!.]*"))) > most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert use(cache, "e", 1000, fetched) == b"e" * 1000
    assert len(list((tmp_path / "entries").iterdir())) == 3
    most = 0
    with pytest.raises(UserError, match=r"The cache folder .* cannot be used: its disk is full"):
        use(cache, "f", 1000, fetched)
    assert not list((tmp_path / "entries").glob(".*"))


def test_threads_that_want_one_block_fetch_it_once(local, remote, web):
    web.delay = 0.05
    remote.n_tokens(2)
    web.gets.clear()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(remote.tokens, [2] * 8))
    assert all(tokens.tolist() == local.tokens(2).tolist() for tokens in results)
    assert len(web.gets) == 1


PROCESS = """
import sys
import numpy as np
from data_prep.format import Dataset
from data_prep.storage import Cache
url, cache, bound, seed, uses, local = sys.argv[1:]
remote, local = Dataset(url, Cache(cache, int(bound))), Dataset(local)
rng = np.random.default_rng(int(seed))
for _ in range(int(uses)):
    for block in rng.permutation(remote.n_blocks).tolist():
        assert np.array_equal(remote.tokens(block), local.tokens(block))
        assert np.array_equal(remote.document_lengths(block), local.document_lengths(block))
"""


@pytest.mark.parametrize("bound, evicts", [(1 << 20, False), (15_000, True)])
def test_processes_share_the_cache(local, web, tmp_path, bound, evicts):
    command = [sys.executable, "-c", PROCESS, f"{web.url}/set", str(tmp_path / "cache"), str(bound)]
    words = [[*command, str(seed), "3", str(local.path)] for seed in range(2)]
    for process in [subprocess.Popen(each, stderr=subprocess.PIPE) for each in words]:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    fetched = [name for name in web.gets if not name[0].endswith("manifest.json")]
    if evicts:
        assert len(fetched) > len(set(fetched))
    else:
        assert len(fetched) == len(set(fetched)) == local.n_blocks + len(local.manifest.shards)
    assert sum(path.stat().st_size for path in pieces(tmp_path)) <= bound
    assert all(len(path.name) == 32 for path in pieces(tmp_path))


def read_in_child(dataset, block, results):
    results.put(dataset.tokens(block).tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_on(local, remote, method):
    assert remote.tokens(0).tolist() == local.tokens(0).tolist()
    copy = pickle.loads(pickle.dumps(remote))  # noqa: S301 - our own object, the way worker processes get it
    assert copy.tokens(1).tolist() == local.tokens(1).tolist()
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=read_in_child, args=(remote, 3, results))
    child.start()
    assert results.get(timeout=60) == local.tokens(3).tolist()
    child.join(timeout=60)
    assert child.exitcode == 0


def test_tokenizer_files_are_checked(tmp_path, memory):
    local = wordpiece_set(tmp_path / "set", [[SHIP]], [])
    memory.put(str(local.path), "/bucket/set", recursive=True)
    remote = Dataset("memory://bucket/set", Cache(tmp_path / "cache"))
    kept = remote.tokenizer_path / "tokenizer.json"
    sound = kept.read_bytes()
    kept.write_bytes(b"{}")
    assert (remote.tokenizer_path / "tokenizer.json").read_bytes() == sound
    kept.unlink()
    memory.pipe("/bucket/set/tokenizer/tokenizer.json", b"{}")
    with pytest.raises(DamagedData, match=r"tokenizer\.json is not the tokenizer of the data set"):
        _ = remote.begins_word
    memory.rm("/bucket/set/tokenizer", recursive=True)
    with pytest.raises(DamagedData, match=r"tokenizer\.json is missing"):
        _ = remote.tokenizer_path


def test_commands(tmp_path, memory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory.put(str(wordpiece_set(tmp_path / "set", [[SHIP] * 3], []).path), "/bucket/set", recursive=True)
    for words, expected in ((["show", "2"], "the ships sailed"), (["info", "--seq-len", "8"], "memory://bucket/set")):
        assert expected in invoke("prep", words[0], "memory://bucket/set", *words[1:]).output
    with pytest.raises(UserError, match=r"^https://host/set is not on this machine\. Copy the data set"):
        invoke("prep", "verify", "https://host/set?signature=secret")
