"""A look at raw text."""

import gzip
import json
import random

import pytest

from data_prep.common.errors import UserError
from data_prep.inspection import survey
from data_prep.sources import Options, find_inputs
from data_prep.storage import Cache


def look(*files):
    return survey(find_inputs(map(str, files)), Options(), Cache(None, 10**9))


def test_a_small_text_is_counted_exactly(tmp_path):
    (tmp_path / "a.txt").write_text("Ein Haus\nam See\n\nzwei Häuser\n")
    (tmp_path / "b.jsonl").write_text('{"text": "zwei Haus"}\nnot JSON\n')
    text = look(tmp_path / "a.txt", tmp_path / "b.jsonl")
    assert text.inputs == {"txt": 1, "jsonl": 1}
    assert (text.documents, text.words, text.rejected, text.scale) == (3, 8, 1, 1.0)
    assert (text.distinct, text.has_spaces, text.cased) == (6 / 8, True, 1.0)
    assert text.stored_bytes == sum((tmp_path / name).stat().st_size for name in ("a.txt", "b.jsonl"))
    (tmp_path / "c.txt").write_text("我们在湖边的房子里住了很多年" * 3)
    chinese = look(tmp_path / "c.txt")
    assert (chinese.has_spaces, chinese.cased, chinese.tokens) == (False, 0.0, 28)


def test_the_size_of_much_text_is_estimated_from_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.inspection.text_survey._SAMPLE_BYTES", 1 << 20)
    draw = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    lines = [" ".join(draw.choices(words, k=200)) for _ in range(1500)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    assert look(tmp_path / "a.txt").words == pytest.approx(1500 * 200, rel=0.05)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", compresslevel=6) as file:
        file.writelines(json.dumps({"text": line}) + "\n" for line in lines)
    assert look(tmp_path / "b.jsonl.gz").words == pytest.approx(1500 * 200, rel=0.15)


def test_files_without_text_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl: no text: .*text.* Name other files, or correct --text-field"):
        look(tmp_path / "a.jsonl")
