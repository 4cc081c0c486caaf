"""Rows 8, 9, 24, 25 of the faults: damaged shards are found before use and named; hostile ones are refused unopened.

Bytes that differ from the manifest are tested in test_format.py and test_verify.py. Here, as someone who
means harm would, everything is sealed again: indexes, sizes and digests agree with what the shard now is.
"""

import hashlib
import io
import json
import pickle
import re
import resource
import shutil
import tarfile

import numpy as np
import pytest

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset, ShardInfo, manifest
from data_prep.format.manifest import index_fingerprint
from data_prep.format.shard_format import BLOCK_RECORD, INDEX_HEADER, xxh3
from data_prep.inspection import verify_data_set
from data_prep.storage import Cache
from tests.support.datasets import make_dataset, tar_member


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Dataset:
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 1000, size=n) for n in rng.integers(1, 300, size=40)]
    ids = [f"doc-{n}" if n % 2 else n for n in range(len(documents))]
    folder = tmp_path_factory.mktemp("sound") / "set"
    dataset = make_dataset(folder, documents, block_tokens=1000, shard_bytes=12_000, ids=ids)
    assert dataset.n_blocks > 3
    assert list(verify_data_set(dataset.path)) == []
    return dataset


@pytest.fixture
def dataset(sound, tmp_path) -> Dataset:
    return Dataset(shutil.copytree(sound.path, tmp_path / "set"))


def tar_path(dataset, shard=0):
    return dataset.path / "shards" / dataset.manifest.shards[shard].name


def edit_manifest(dataset, change):
    path = dataset.path / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


def seal(dataset, shard=0):
    """Make the manifest vouch for a shard and its index as they now are."""

    def change(manifest):
        entry = manifest["shards"][shard]
        for prefix, suffix in (("", ".tar"), ("index_", ".index")):
            path = tar_path(dataset, shard).with_suffix(suffix)
            data = path.read_bytes()
            entry |= {f"{prefix}bytes": len(data), f"{prefix}sha256": hashlib.sha256(data).hexdigest()}
        manifest["index_fingerprint"] = index_fingerprint([ShardInfo(**shard) for shard in manifest["shards"]])

    edit_manifest(dataset, change)


def members(dataset, shard=0) -> list[tuple[str, bytes, int]]:
    """Name, header and payload with padding, and payload size of each member."""
    data = tar_path(dataset, shard).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        infos = tar.getmembers()
    return [(i.name, data[i.offset : i.offset_data + -(-i.size // 512) * 512], i.size) for i in infos]


def write_tar(dataset, parts, shard=0):
    data = b"".join(parts) + bytes(1024)
    tar_path(dataset, shard).write_bytes(data + bytes(-len(data) % tarfile.RECORDSIZE))
    seal(dataset, shard)


def member(name, kind=tarfile.REGTYPE, size=0, payload=b"", link="", form=tarfile.USTAR_FORMAT) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size or len(payload), link
    return info.tobuf(form) + payload + bytes(-len(payload) % 512)


# Row 8: truncated or missing


def cut_at(dataset, where) -> int:
    parts = members(dataset)
    boundary = sum(len(part) for _, part, _ in parts[:4])
    return {"boundary": boundary, "header": boundary + 100, "payload": boundary + 512 + 128 + 10}[where]


@pytest.mark.parametrize("where", ["boundary", "header", "payload"])
def test_truncated_shard_is_named_with_what_is_lost(dataset, where):
    path = tar_path(dataset)
    size, keep = path.stat().st_size, cut_at(dataset, where)
    path.write_bytes(path.read_bytes()[:keep])
    again = Dataset(dataset.path)
    with pytest.raises(DamagedData, match=f"{path.name} has {keep} bytes, the manifest has {size};"):
        again.check_files()
    again.tokens(0)
    with pytest.raises(DamagedData) as caught:
        again.tokens(1)
    there, of = max(0, keep - int(dataset.table[1]["tokens_offset"])), 2 * dataset.n_tokens(1)
    assert str(caught.value).startswith(
        f"{path} is cut short: it has {keep} bytes, the manifest has {size}; of the tokens of block {dataset.key(1)}, "
        f"{there} of {of} bytes are left;"
    )
    problems = list(verify_data_set(dataset.path))
    assert problems[0] == f"{path.name}: {keep} bytes instead of {size}"
    lost = [block for block in range(1, dataset.n_blocks) if dataset.shard(block).name == path.name]
    documents = sum(len(dataset.document_lengths(block)) for block in lost)
    tokens = sum(int(dataset.document_lengths(block).sum()) for block in lost)
    assert problems[1] == (
        f"{path.name}: {len(lost)} of {len(lost) + 1} blocks ({documents} documents, {tokens} tokens) lie beyond the "
        f"end of the file, from block {dataset.key(1)} on"
    )
    assert problems[2].startswith(f"{path.name}: ")
    assert len(problems) == 3


@pytest.mark.parametrize("where", ["boundary", "header", "payload"])
def test_truncated_shard_that_the_manifest_vouches_for(dataset, where):
    """A stock tar reader takes such a shard for a short one, without an error."""
    path = tar_path(dataset)
    path.write_bytes(path.read_bytes()[: cut_at(dataset, where)])
    seal(dataset)
    with pytest.raises(DamagedData, match=rf"{path.with_suffix('.index').name} is damaged: .*(tar|end)"):
        Dataset(dataset.path).tokens(0)
    assert any("tar" in problem for problem in verify_data_set(dataset.path))


# Row 9: a flipped bit


def test_every_flipped_bit_of_a_header_is_found(dataset):
    path = tar_path(dataset)
    sound = path.read_bytes()
    for position in range(0, 640, 13):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        assert any(problem.startswith(path.name) for problem in verify_data_set(dataset.path)), position


# Rows 24, 25: hostile tars


class Bomb:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


HOSTILE = {
    "parent": (lambda: member("../evil.tokens.npy", payload=b"x"), "'../evil.tokens.npy' (file of 1 bytes)"),
    "symlink": (lambda: member("link", tarfile.SYMTYPE, link="/etc/passwd"), "'link' (symbolic link of"),
    "character": (lambda: member("dev", tarfile.CHRTYPE), "'dev' (device of"),
    "long-name": (lambda: member("n" * 300, payload=b"x", form=tarfile.GNU_FORMAT), "(type b'L' of"),
    "huge": (lambda: member("00000_000000000.ends.npy", size=8**11 - 1), "(file of 8589934591 bytes) stands where"),
    "escape": (lambda: member("\x1b[2Jx", payload=b"x"), r"'\x1b[2Jx' (file of 1 bytes) stands where"),
}


@pytest.mark.parametrize(
    ("name", "place"), [*((name, "within") for name in HOSTILE), ("symlink", "first"), ("symlink", "last")]
)
def test_hostile_members_are_named_and_never_followed(dataset, tmp_path, name, place):
    make, message = HOSTILE[name]
    parts = [part for _, part, _ in members(dataset)]
    at = {"first": 0, "within": 4, "last": len(parts)}[place]
    write_tar(dataset, [*parts[:at], make(), *parts[at:]])
    before = sorted(tmp_path.rglob("*"))
    problems = list(verify_data_set(dataset.path))
    assert sorted(tmp_path.rglob("*")) == before
    named = [problem for problem in problems if problem.startswith(f"{tar_path(dataset).name}: member ")]
    assert len(named) == 1, problems
    if place == "last":
        assert named[0].endswith("is not in the index")
    else:
        second = place == "within" and "member '00000_000000000.ends.npy' (file of"
        assert message in named[0] or (second and second in named[0])


def test_a_pickle_in_a_shard_is_refused_and_not_loaded(dataset, tmp_path):
    payload = pickle.dumps(Bomb(tmp_path / "exploded"))
    parts = [part for _, part, _ in members(dataset)]
    write_tar(dataset, [*parts, tar_member("00000_000000009.pkl", payload)])
    (problem,) = [p for p in verify_data_set(dataset.path) if "is not in the index" in p]
    found = f"member '00000_000000009.pkl' (file of {len(payload)} bytes)"
    assert problem == f"{tar_path(dataset).name}: {found} is not in the index"
    again = Dataset(dataset.path)  # it reads by the index, and so never comes near that member
    for block in range(again.n_blocks):
        again.tokens(block), again.document_ends(block), again.ids(block)
    assert not (tmp_path / "exploded").exists()


def test_duplicate_swapped_and_missing_members(dataset):
    parts = [part for _, part, _ in members(dataset)]
    names = [name for name, _, _ in members(dataset)]
    write_tar(dataset, [parts[0], parts[0], *parts[1:]])
    (problem,) = [problem for problem in verify_data_set(dataset.path) if "stands where" in problem]
    assert re.fullmatch(rf".*: member '{names[0]}' \(file of \d+ bytes\) stands where '{names[1]}' should be", problem)
    write_tar(dataset, [*parts, parts[-1]])
    (problem,) = [problem for problem in verify_data_set(dataset.path) if "is not in the index" in problem]
    assert re.fullmatch(rf".*: member '{names[-1]}' \(file of \d+ bytes\) is not in the index", problem)
    write_tar(dataset, [parts[1], parts[0], *parts[2:]])
    assert any("stands where" in problem for problem in verify_data_set(dataset.path))


@pytest.mark.parametrize(
    "tail, message", [(b"hidden", "data follow its end marker"), (bytes(10_240), "bytes instead of")]
)
def test_data_after_the_end_marker(dataset, tail, message):
    path = tar_path(dataset)
    data = bytearray(path.read_bytes())
    if tail.strip(b"\0"):
        data[-len(tail) :] = tail
        path.write_bytes(data)
    else:
        path.write_bytes(data + tail)
    seal(dataset)
    (problem,) = verify_data_set(dataset.path)
    assert problem.startswith(f"{path.name}: ")
    assert message in problem


def test_padding_hides_nothing(dataset):
    path = tar_path(dataset)
    data = bytearray(path.read_bytes())
    name, _, size = members(dataset)[0]
    assert size % 512
    data[512 + size] = 1
    path.write_bytes(data)
    seal(dataset)
    assert list(verify_data_set(dataset.path)) == [f"{path.name}: bytes that are not 0 follow member {name!r}"]


def test_an_array_must_be_the_one_of_the_index(dataset):
    path = tar_path(dataset)
    path.write_bytes(path.read_bytes().replace(b"'descr': '<u4'", b"'descr': '|O8'", 1))
    seal(dataset)
    (problem,) = verify_data_set(dataset.path)
    assert "does not begin as the .npy array" in problem


def test_a_sparse_giant_costs_no_memory(dataset):
    """A sparse shard of 3 TB: it is refused by its size, without memory for it."""
    path = tar_path(dataset)
    with open(path, "r+b") as file:
        file.truncate(3 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedData, match="bytes, the manifest has"):
        Dataset(dataset.path).check_files()
    problems = list(verify_data_set(dataset.path))
    assert any("3298534883328 bytes instead of" in problem for problem in problems)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


# Hostile manifests and indexes


INPUT = {"name": "x", "source": "", "bytes": 1, "digest": "", "first_task": 0, "tasks": 1}
INPUT |= {"documents": 1, "tokens": 1, "text_bytes": 0, "left_out": {}}
MANIFESTS = {
    "parent": (lambda m: m["shards"][0].update(name="../00000-00000.tar"), "is not a shard's name"),
    "digits": (lambda m: m["shards"][0].update(name="٠٠٠٠٠-٠٠٠٠٠.tar"), "is not a shard's name"),
    "newline": (lambda m: m["shards"][0].update(name="00000-00000.tar\n"), "is not a shard's name"),
    "twice": (lambda m: m["shards"].append(m["shards"][0]), "or there are two such shards"),
    "tokenizer-parent": (lambda m: m["tokenizer"].update(files={"../x.json": "0" * 64}), "not a name for a tokenizer"),
    "tokenizer-code": (lambda m: m["tokenizer"].update(files={"tok.py": "0" * 64}), "not a name for a tokenizer"),
    "digest": (lambda m: m["shards"][0].update(sha256="\x1b[2J"), "not a SHA-256"),
    "huge": (lambda m: m["totals"].update(tokens=1 << 63), "totals.tokens is 9223372036854775808, not a whole"),
    "vocabulary": (lambda m: m["tokenizer"].update(vocab_size=1 << 40), "vocab_size is 1099511627776, not from 1"),
    "special": (lambda m: m["tokenizer"]["special_ids"].update(mask=5000), "special id 5000 is not in the voc"),
    "tasks": (lambda m: m["sources"].append(INPUT | {"first_task": 1 << 32}), "'x' has 1 tasks from 4294967296 on"),
    "role": (lambda m: m["tokenizer"]["special_ids"].pop("mask"), "special_ids are of"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_hostile_manifest_is_refused_with_one_sentence(dataset, name):
    change, message = MANIFESTS[name]
    edit_manifest(dataset, change)
    for read in (Dataset, lambda folder: list(verify_data_set(folder))):
        with pytest.raises(UserError, match=message) as caught:
            read(dataset.path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400 + len(str(dataset.path))


def test_manifest_too_large_to_read(dataset, monkeypatch):
    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(UserError, match="it has more than 100 bytes"):
        Dataset(dataset.path)


REFUSED_URLS = {
    "pipe:touch exploded": "No data set at",
    "pipe://touch exploded": "cannot be opened: Protocol not known: pipe",
    "nosuch://host/set": "cannot be opened: Protocol not known: nosuch",
    "simplecache::memory://set": "begins with simplecache::",
    "reference://::memory://references.json": "reference://, which is not read",
    "zip://set::reference://x::memory://references.json": "reference://, which is not read",
    "https://me:secret@host/set": "holds a password",
    "https://secret@host/set": "holds a password",
    "zip://a::https://me:secret@host/b": "holds a password",
    "https://host/set?signature=secret": "https://host/set has a query",
}


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_urls_that_are_not_read(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=REFUSED_URLS[url]) as caught:
        Dataset(url, Cache(tmp_path / "cache"))
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def set_to(record, name, value):
    return lambda header, records, tar_bytes: records[record].__setitem__(name, value)


def to_the_end(header, records, tar_bytes):
    records[0]["ends_offset"] = tar_bytes - 1


def shift_a_token(header, records, tar_bytes):
    records[0]["tokens"] += 1
    records[1]["tokens"] -= 1


def widen(header, records, tar_bytes):
    header["token_bytes"] = 4


INDEXES = {
    "offset": (set_to(0, "tokens_offset", 1 << 62), "more than the"),
    "beyond": (to_the_end, "would lie beyond the end of the tar"),
    "documents": (set_to(0, "documents", 1), "do not divide its documents"),
    "first": (set_to(0, "first_document", 7), "do not divide its documents"),
    "none": (set_to(0, "tokens_offset", 0), "has no tokens or no ends"),
    "order": (set_to(0, "number", 1000), "not in the order of their numbers"),
    "ids": (set_to(0, "ids_bytes", 1 << 40), "ids_bytes is"),
    "count": (set_to(0, "tokens", 3), "do not add up to its tokens"),
    "shift": (shift_a_token, "do not add up to its tokens"),
    "width": (widen, "its tokens have 4 bytes, the manifest's 2"),
}


def edit_index(dataset, change):
    path = tar_path(dataset).with_suffix(".index")
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, INDEX_HEADER, 1)
    records = np.frombuffer(data, BLOCK_RECORD, int(header[0]["blocks"]), INDEX_HEADER.itemsize)
    change(header[0], records, tar_path(dataset).stat().st_size)
    path.write_bytes(data)
    seal(dataset)


@pytest.mark.parametrize("name", INDEXES)
def test_hostile_index_is_refused_when_opened(dataset, name):
    change, message = INDEXES[name]
    path = tar_path(dataset).with_suffix(".index")
    edit_index(dataset, change)
    again = Dataset(dataset.path)
    for use in (again.tokens, again.document_lengths, again.key):
        with pytest.raises(DamagedData, match=f"{path.name} is damaged: .*{message}"):
            use(0)
    assert any(p.startswith(f"{path.name}: ") and message in p for p in verify_data_set(dataset.path))


def test_index_that_points_elsewhere_in_the_tar(dataset):
    offset = int(dataset.table[0]["ends_offset"])
    edit_index(dataset, set_to(0, "ends_offset", offset + 4))
    message = f"member '00000_000000000.ends.npy' starts at {offset}, in the index at {offset + 4}"
    assert f"{tar_path(dataset).name}: {message}" in verify_data_set(dataset.path)


@pytest.mark.parametrize("text", ["[" * 4000, '{"a": 1}', "[1.5]", "[true]", "[]", "nonsense", "\xff"])
def test_ids_that_are_no_list_of_the_documents(tmp_path, text):
    dataset = make_dataset(tmp_path / "set", [[7, 8, 9]], ids=["x" * 4094])
    replace_ids(dataset, text.encode("latin-1").ljust(4098))
    again = Dataset(dataset.path)
    with pytest.raises(DamagedData, match="the ids of 00000_000000000: "):
        again.ids(0)
    assert any("the ids are not valid" in problem for problem in verify_data_set(dataset.path))


def replace_ids(dataset, payload):
    """Put other bytes in the place of the first block's ids, the checksum included."""
    start, size = (int(dataset.table[0][name]) for name in ("ids_offset", "ids_bytes"))
    assert len(payload) == size
    content = tar_path(dataset).read_bytes()
    tar_path(dataset).write_bytes(content[:start] + payload + content[start + size :])
    edit_index(dataset, set_to(0, "ids_xxh3", xxh3(payload)))
