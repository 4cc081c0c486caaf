"""Input search, URLs, and the cache of remote files, with real servers and several processes."""

import gzip
import io
import os
import zipfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import known_implementations

from data_prep.common.errors import UserError
from data_prep.common.urls import RemoteVersion, shown
from data_prep.sources import examine, find_inputs
from data_prep.sources.input_types import compression_of, kind_of
from data_prep.storage import Cache
from tests.support.hub_server import Repository, Store, serving_hub
from tests.support.prep import jsonl, whole
from tests.support.web import serving


@pytest.fixture
def web(tmp_path):
    """A served folder."""
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr("data_prep.storage.cache._WAIT_SECONDS", 0.3)
    monkeypatch.setattr("data_prep.common.urls.BACKOFF_SECONDS", 0.01)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", 1 << 20)


def texts(source, cache):
    return [row.reason or row.text for row in whole(source, cache)]


def names(values, folder):
    return [source.location.removeprefix(f"{folder}/") for source in find_inputs(values)]


def test_files_folders_and_globs(tmp_path):
    everything, inner = ["a.txt.gz", "b.jsonl", "p.parquet", "sub/c.jsonl.zst"], tmp_path / "sub/c.jsonl.zst"
    for name in (*everything, "sub/notes.md", ".hidden/d.txt", "sub/._c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names([tmp_path], tmp_path) == everything
    assert names([f"{tmp_path}/*.jsonl"], tmp_path) == ["b.jsonl"]
    assert names([f"{tmp_path}/**/*.jsonl*"], tmp_path) == ["b.jsonl", "sub/c.jsonl.zst"]
    assert names([inner, tmp_path, tmp_path / "b.jsonl"], tmp_path) == ["sub/c.jsonl.zst", *everything[:3]]
    assert [source.kind for source in find_inputs([tmp_path])] == ["txt", "jsonl", "parquet", "jsonl"]
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "b.jsonl")
    assert len(find_inputs([tmp_path / "link.jsonl", tmp_path / "b.jsonl"])) == 1
    for value in ("none.jsonl", "*.nothing", "none/"):
        with pytest.raises(UserError, match=r"No input file at .*(none|nothing)"):
            find_inputs([tmp_path / value])
    with pytest.raises(UserError, match=r"notes\.md: \.md is not supported\. If it is plain text, rename it"):
        find_inputs([tmp_path / "sub/notes.md"])


@pytest.mark.parametrize(
    "files",
    [
        ("prep/place.json", "prep/tasks/0.json", "quarantine.jsonl"),
        ("tokenizer.json", "tokenizer_config.json", "vocab.txt"),
        ("config.yaml", "status.json", "journal.jsonl"),
    ],
    ids=["data set", "tokenizer or export", "run"],
)
def test_folders_that_maskwright_wrote_are_not_text(tmp_path, files):
    text, own = tmp_path / "in/text.jsonl", tmp_path / "in/data/own"
    beside = [tmp_path / "in" / name for name in ("my-model.yaml", "mlflow.db", "mlflow-artifacts/a.jsonl")]
    for file in (text, *beside, *(own / name for name in files)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    unread: dict[str, int] = {}
    assert [source.location for source in find_inputs([tmp_path / "in"], unread)] == [str(text)]
    assert unread == {f"{own}/": 0}
    text.unlink()
    with pytest.raises(UserError, match=rf"^No input file in {tmp_path}/in but in {own}/, a folder of Maskwright\.$"):
        find_inputs([tmp_path / "in"])
    assert [source.location for source in find_inputs([own / files[2]])] == [str(own / files[2])]
    (own / files[0]).unlink()  # one of the names may be the user's
    assert names([tmp_path / "in"], own) == [files[2]]


def test_a_name_that_is_not_in_utf8_is_refused(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).touch()
    with pytest.raises(UserError, match=r"\\udcff\.jsonl' is not in UTF-8"):
        find_inputs([tmp_path])


def test_source_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "year=2020/b.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    inputs = find_inputs(["books=a.jsonl", "year=2020/b.jsonl", "web_1-x=year=2020/b.jsonl", "a.jsonl"])
    found = [(item.source, item.location.removeprefix(f"{tmp_path}/")) for item in inputs]
    assert found == [("books", "a.jsonl"), ("", "year=2020/b.jsonl")]
    assert [item.source for item in find_inputs(["year=*/b.jsonl", "x=*.jsonl"])] == ["", "x"]
    with pytest.raises(UserError, match="No input file at none"):
        find_inputs(["x=none"])
    with pytest.raises(UserError, match="No input file at b d=a"):
        find_inputs(["b d=a.jsonl"])


def test_folders_name_their_sources(tmp_path, monkeypatch, web):
    monkeypatch.chdir(tmp_path)
    for name in ("deu_Latn/b.txt", "deu_Latn/train/a.txt", "ell_Grek/a.txt"):
        for root in (tmp_path / "in", web.folder):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
    for value in ("in", "in/", "in/*", "in/**/*.txt", "in/*_*/", str(tmp_path / "in"), web.url, f"{web.url}/**/*.txt"):
        assert [item.source for item in find_inputs([f"*={value}"])] == ["deu_Latn", "deu_Latn", "ell_Grek"], value
    for name in ("in/c.txt", "in/a.b/c.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
        with pytest.raises(UserError, match=rf"{name} is in no folder below in that can name its source with letters"):
            find_inputs(["*=in"])
        Path(name).unlink()


def test_file_urls_are_local_paths(tmp_path, cache):
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a"]))
    inputs = find_inputs([f"file://{tmp_path}/a.jsonl", f"local://{tmp_path}/*.jsonl", tmp_path / "a.jsonl"])
    assert [item.location for item in inputs] == [str(tmp_path / "a.jsonl")]
    assert texts(inputs[0], cache) == ["a"]
    assert not cache.folder.exists()


def test_http_files_folders_and_globs(web, cache):
    (web.folder / "sub").mkdir()
    (web.folder / "a.jsonl").write_bytes(jsonl(["a", "b"]))
    (web.folder / "sub" / "b.txt.gz").write_bytes(gzip.compress(b"c\n\nd"))
    (web.folder / "sub" / "notes.md").touch()
    pq.write_table(pa.table({"text": ["e", "f"]}), web.folder / "sub" / "c.parquet", row_group_size=1)
    inputs = find_inputs([f"x={web.url}/"])
    assert [item.location.removeprefix(web.url) for item in inputs] == ["/a.jsonl", "/sub/b.txt.gz", "/sub/c.parquet"]
    assert [texts(item, cache) for item in inputs] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert {item.source for item in inputs} == {"x"}
    assert names([f"{web.url}/sub/*.gz"], web.url) == ["sub/b.txt.gz"]
    assert examine(inputs[0], cache).unit_bytes is None
    assert len(examine(inputs[2], cache).unit_bytes) == 2
    (query,) = find_inputs([f"{web.url}/a.jsonl?download=true"])
    assert query.kind == "jsonl"
    assert texts(query, cache) == ["a", "b"]


def test_http_errors_are_sentences_without_secrets(web, cache):
    (web.folder / "notes.md").write_text("x")
    for path, words in {
        "/none.jsonl?signature=abc": "none.jsonl does not exist",
        "/forbidden.jsonl?signature=abc": "forbidden.jsonl cannot be read: the server answered 403",
        "/none/": "No input file at .*none/;",
        "/*.parquet": "No input file at",
        "/notes.md": "No input file at .*notes.md;",
    }.items():
        with pytest.raises(UserError, match=words) as caught:
            find_inputs([web.url + path])
        assert "abc" not in str(caught.value)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/a\.jsonl cannot be read"):
        find_inputs(["http://127.0.0.1:9/a.jsonl"])


def test_the_path_of_a_url_tells_the_kind_and_its_query_is_not_shown():
    for url, name, kind, compression in (
        ("https://host/a.jsonl?token=abc", "https://host/a.jsonl", "jsonl", ""),
        ("HTTPS://host/a.txt.gz?x=a/b.parquet", "HTTPS://host/a.txt.gz", "txt", ".gz"),
        ("s3://bucket/a.jsonl.zst?versionId=1/2", "s3://bucket/a.jsonl.zst", "jsonl", ".zst"),
        ("zip://a.parquet::https://host/b.zip?sig=a.txt", "zip://a.parquet::https://host/b.zip", "parquet", ""),
        ("s3://bucket/a?.jsonl", "s3://bucket/a?.jsonl", "jsonl", ""),
        ("/data/a.jsonl?b=c", "/data/a.jsonl?b=c", None, ""),
    ):
        assert (shown(url), kind_of(url), compression_of(url)) == (name, kind, compression)


def test_a_version_is_no_pattern(cache):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/v/a.jsonl?versionId=1": jsonl(["old"]), "/v/a.jsonl": jsonl(["new"])})
    try:
        inputs = find_inputs(["memory://v/a.jsonl?versionId=1", "memory://v/?.jsonl"])
        assert [(source.kind, texts(source, cache)) for source in inputs] == [("jsonl", ["old"]), ("jsonl", ["new"])]
    finally:
        memory.rm("/v", recursive=True)


def test_missing_packages_and_protocols_are_named(monkeypatch):
    monkeypatch.setitem(known_implementations, "gone", {"class": "gone_fs.FileSystem", "err": "Install gone_fs"})
    with pytest.raises(UserError, match=r"gone://b/a\.jsonl cannot be opened: Install gone_fs"):
        find_inputs(["gone://b/a.jsonl"])


def test_other_file_systems_and_chained_urls(tmp_path, cache):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/corpus/a.jsonl": jsonl(["a"]), "/corpus/b/c.txt": b"c", "/corpus/b/notes.md": b"x"})
    try:
        inputs = find_inputs(["memory://corpus", "memory://corpus/*.jsonl", "memory:///corpus/b/?.txt"])
        assert [item.location for item in inputs] == ["memory:///corpus/a.jsonl", "memory:///corpus/b/c.txt"]
        assert [texts(item, cache) for item in inputs] == [["a"], ["c"]]
        before = examine(inputs[1], cache).digest
        memory.pipe("/corpus/b/c.txt", b"d")
        assert examine(inputs[1], cache).digest != before
        assert texts(inputs[1], cache) == ["d"]
    finally:
        memory.rm("/corpus", recursive=True)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        file.writestr("in/a.jsonl", jsonl(["zipped"]))
    (source,) = find_inputs([f"zip://in/*.jsonl::file://{tmp_path}/z.zip"])
    assert texts(source, cache) == ["zipped"]


def test_a_data_set_of_the_hub(cache, monkeypatch):
    table, repository = io.BytesIO(), Repository(private=True)
    pq.write_table(pa.table({"text": ["a", "b"]}), table)
    repository.commit("refs/convert/parquet", {"default/train/0.parquet": table.getvalue()})
    repository.commit("main", {"a.jsonl": jsonl(["c"]), "README.md": b"x"})
    with serving_hub(Store({"token": "read"}, {"someone/texts": repository})) as hub:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url, "token": "token"})
        (converted,) = find_inputs(["hf://datasets/someone/texts@refs/convert/parquet/default/train/*.parquet"])
        (given,) = find_inputs(["hf://datasets/someone/texts"])
        assert (texts(converted, cache), texts(given, cache)) == (["a", "b"], ["c"])
        before = examine(given, cache)
        repository.commit("main", {"a.jsonl": jsonl(["d"])})
        fsspec.filesystem("hf").invalidate_cache()
        assert examine(given, cache).digest != before.digest
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url})
        with pytest.raises(UserError, match=r"someone/texts/a\.jsonl cannot be read: 404"):
            find_inputs(["hf://datasets/someone/texts/a.jsonl"])


def test_a_cut_download_is_tried_again(web, cache):
    (web.folder / "a.jsonl").write_bytes(jsonl(map(str, range(1000))))
    web.cuts = 1
    (source,) = find_inputs([f"{web.url}/a.jsonl"])
    assert len(texts(source, cache)) == 1000
    assert len(web.gets) == 2
    assert len(texts(source, cache)) == 1000  # from the cache
    assert len(web.gets) == 2
    web.cuts = 1000
    (web.folder / "a.jsonl").write_bytes(jsonl(["other"]))
    with pytest.raises(UserError, match=r"/a\.jsonl cannot be read"):
        texts(source, cache)
    assert not list(cache.entries.glob(".*"))
    web.cuts = 0
    assert texts(source, cache) == ["other"]


def test_a_server_that_tells_neither_size_nor_version(web, cache):
    path = web.folder / "sizeless.jsonl"
    path.write_bytes(jsonl(["a", "b"]))
    (source,) = find_inputs([f"{web.url}/sizeless.jsonl"])
    assert texts(source, cache) == ["a", "b"]
    assert examine(source, cache) == examine(*find_inputs([path]), cache)
    path.write_bytes(bytes(10 << 20))
    small = Cache(cache.folder.with_name("other"), 1 << 20)
    with pytest.raises(UserError, match=r"and the cache .* may hold 1048576"):
        texts(source, small)
    assert not list(small.entries.glob(".*"))


def test_a_file_of_another_size_than_told_is_refused(web, cache, monkeypatch):
    (web.folder / "a.jsonl").write_bytes(jsonl(["a"]))
    (source,) = find_inputs([f"{web.url}/a.jsonl"])
    monkeypatch.setattr("data_prep.storage.cache.remote_version", lambda remote: RemoteVersion(99, "1"))
    with pytest.raises(UserError, match="14 of its 99 bytes arrived"), cache.local(source.location):
        pass
    assert not list(cache.entries.iterdir())


def test_files_in_use_are_not_removed(web, tmp_path):
    cache = Cache(tmp_path / "cache", 2500)
    for name, size in (("a", 1000), ("b", 1000), ("d", 1000), ("big", 2501)):
        (web.folder / f"{name}.txt").write_bytes(b"x" * size)

    def use(name):
        return cache.local(f"{web.url}/{name}.txt")

    refused = pytest.raises(UserError, match=r"No room for .*/d\.txt in the cache")
    with use("a"):
        pass
    with use("a"), use("b"), refused, use("d"):  # one is in the cache, one is new
        pass
    with use("d"):
        assert len(list(cache.entries.iterdir())) == 2
    with pytest.raises(UserError, match=r"has 2501 bytes or more, and the cache .* may hold 2500"), use("big"):
        pass
