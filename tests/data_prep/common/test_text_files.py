"""Text files of users, local and remote: places of lines, and messages for files that cannot be used."""

import gzip

import pytest
import zstandard

from data_prep.common.errors import UserError
from data_prep.storage import load_text, read_json_lines, read_lines, text_files
from tests.support.hostile_json import HOSTILE
from tests.support.web import serving

LINE = b'{"text": "sch\xc3\xb6n"}\n'


@pytest.mark.parametrize("name, pack", [("a", bytes), ("a.gz", gzip.compress), ("a.zst", zstandard.compress)])
def test_a_line_knows_its_place_in_a_file_and_at_an_address_whose_query_is_not_shown(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"\r\n" + LINE))
    assert list(read_json_lines(str(tmp_path / name))) == [(f"{tmp_path / name}, line 2", {"text": "schön"})]
    with serving(tmp_path) as web:
        url = f"{web.url}/{name}"
        assert list(read_lines(f"{url}?code=abc")) == [(f"{url}, line 2", '{"text": "schön"}')]
        with pytest.raises(UserError, match="none does not exist") as missing:
            load_text(f"{web.url}/none?code=abc")
    with pytest.raises(UserError, match="cannot be read") as closed:
        load_text(f"{url}?code=abc")
    with pytest.raises(UserError, match="holds a password") as password:
        load_text("https://me:abc@host/a.tsv")
    assert not any("abc" in str(caught.value) for caught in (missing, closed, password))


@pytest.mark.parametrize("name, content, said", [
    ("a.gz", gzip.compress(LINE)[:-9], r"a\.gz cannot be read"),
    ("a.zst", zstandard.compress(LINE)[:-9], r"a\.zst cannot be read"),
    ("a", b"\xff\xfe\n", "a is not a text in UTF-8"),
    ("a", b" \n", "a is empty"),
    ("a", None, r"No file .*a\. Correct the path"),
    ("a", LINE + b'{"text": \n', "a, line 2 is not JSON"),
    ("a", LINE + b"[1]", "a, line 2 is not a JSON object"),
    *(("a", LINE + f'{{"text": {value}}}'.encode(), "a, line 2 is not JSON") for value in HOSTILE.values()),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_by_its_name(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        list(read_json_lines(str(tmp_path / name)))


@pytest.mark.parametrize("name, pack", [("a", bytes), ("a.gz", gzip.compress), ("a.zst", zstandard.compress)])
def test_a_file_that_is_too_large_to_be_read_whole_is_refused(tmp_path, monkeypatch, name, pack):
    monkeypatch.setattr(text_files, "_MAX_BYTES", 1 << 20)
    (tmp_path / name).write_bytes(pack(b"a" * (1 << 20)))
    assert len(load_text(str(tmp_path / name))) == 1 << 20
    (tmp_path / name).write_bytes(pack(b"a" * ((1 << 20) + 1)))
    with serving(tmp_path) as web:
        for place in (tmp_path / name, f"{web.url}/{name}"):
            with pytest.raises(UserError, match=rf"{place} has more than 1 MiB, .* whole\. Name a part of it\.$"):
                load_text(str(place))


@pytest.mark.parametrize("name, pack", [("a.gz", gzip.compress), ("a.zst", zstandard.compress)])
def test_a_few_bytes_that_expand_to_very_many_are_refused(tmp_path, monkeypatch, name, pack):
    monkeypatch.setattr(text_files, "_FREE_BYTES", 1 << 16)
    (tmp_path / name).write_bytes(pack(b"a" * (1 << 16)))
    assert len(load_text(str(tmp_path / name))) == 1 << 16
    (tmp_path / name).write_bytes(pack(b"a" * ((1 << 16) + 1)))
    with pytest.raises(UserError, match=rf"{name} .* expand to more than 65,536: decompress it yourself"):
        load_text(str(tmp_path / name))
