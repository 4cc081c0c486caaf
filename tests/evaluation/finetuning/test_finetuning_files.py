"""Example files for fine-tuning: known layouts, and messages for files that do not fit."""

import io

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.common.errors import UserError
from evaluation.finetuning.example_files import TableRow, content_digest, pinned, read_columns, read_table
from evaluation.finetuning.label_tasks import COLA, find_columns
from tests.support.finetuning import write
from tests.support.hub_server import Repository, Store, connect, serving_hub


@pytest.mark.parametrize("name, text, columns, cells", [
    ("sst2.tsv", "sentence\tlabel\nit 's \"good\t1\n", ("sentence", "label"), ("it 's \"good", "1")),
    ("cola.tsv", "gj04\t0\t*\tThe car honked.\n", COLA, ("The car honked.", "0")),
    ("nli.tsv", "id\tsentence1\tsentence2\tlabel\n7\tA.\tB.\tneutral\n", ("sentence1", "sentence2", "label"),
     ("A.", "B.", "neutral")),
    ("mnli.tsv", "premise\thypothesis\tgold_label\r\nA.\tB.\tneutral\r\n", ("premise", "hypothesis", "gold_label"),
     ("A.", "B.", "neutral")),
    ("x.jsonl", '{"label": 1, "text": "good"}\n\n', ("text", "label"), ("good", "1")),
    ("y.jsonl", '{"label": 2.5, "text": "good"}', ("text", "label"), ("good", "2.5")),
])  # fmt: skip
def test_usual_tables_are_known_by_their_first_line(tmp_path, name, text, columns, cells):
    path = write(tmp_path / name, text)
    assert find_columns(path) == columns
    assert [row.cells for row in read_table(path, columns)] == [cells]


CARD = "---\nconfigs:\n- config_name: rte\n  data_files:\n  - split: train\n    path: rte/train-*\n---\n"


def rte(rows):
    """The files of a data set of the Hub with the configuration rte."""
    pq.write_table(pa.Table.from_pylist(rows), table := io.BytesIO())
    return {"README.md": CARD.encode(), "rte/train-0.parquet": table.getvalue()}


def test_a_data_set_of_the_hub_is_a_table_of_one_commit(tmp_path, monkeypatch):
    rows = [{"sentence1": "a", "sentence2": "b", "label": 1}, {"sentence1": "c", "sentence2": "d", "label": 0}]
    repository, name = Repository(private=False), "hub:nyu-mll/glue?name=rte&split=train"
    commit = repository.commit("main", rte(rows))
    with serving_hub(Store({}, {"nyu-mll/glue": repository})) as hub:
        connect(monkeypatch, hub, tmp_path)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        path = pinned(name)
        assert path == f"{name}&revision={commit}"
        repository.commit("main", rte(rows[1:]))
        columns = find_columns(path)
        assert [row.cells for row in read_table(path, columns)] == [("a", "b", "1"), ("c", "d", "0")]
        assert read_table(path, columns)[1].place == f"{path}, row 2"
        assert content_digest(path) != content_digest(pinned(name))
        with pytest.raises(UserError, match="has the splits train; choose one with split=NAME"):
            pinned(name.replace("split=train", "split=dev"))
    with pytest.raises(UserError, match=r"other\?name=rte cannot be loaded .* Check its name and the network"):
        pinned("hub:nyu-mll/other?name=rte")


def test_a_damaged_image_is_not_decoded_and_damaged_text_is_a_message(tmp_path):
    texts = pa.array([b"a", b"\xff"]).view(pa.string())
    table = pa.table({"text": texts, "label": [0, 1], "image": [{"bytes": b"none", "path": None}] * 2})
    kinds = {"text": datasets.Value("string"), "label": datasets.Value("int64"), "image": datasets.Image()}
    whole = datasets.Dataset(table).cast(datasets.Features(kinds))
    whole.select([0]).save_to_disk(tmp_path / "image")
    whole.save_to_disk(tmp_path / "text")
    path = f"hub:{tmp_path}/image"
    assert read_table(path, find_columns(path)) == [TableRow(f"{path}, row 1", ("a", "0"))]
    assert len(content_digest(path)) == 64
    with pytest.raises(UserError, match=f"hub:{tmp_path}/text cannot be loaded .*utf-8"):
        read_table(f"hub:{tmp_path}/text", ("text", "label"))


def test_a_row_knows_its_line(tmp_path):
    path = write(tmp_path / "a.tsv", "text\tlabel\n\nx\t1\n")
    assert read_table(path, ("label", "text")) == [TableRow(f"{path}, line 3", ("1", "x"))]


@pytest.mark.parametrize("name, text, columns, said", [
    ("a.tsv", "text\tlabel\nx\t1\n", ("text", "labels"), r"a\.tsv, line 1 has no column 'labels', but .*'label'"),
    ("a.tsv", "text\tlabel\nx\t1\ny\n", ("text", "label"), r"line 3: there are 1 cells, and 2 in the first"),
    ("a.tsv", "text\tlabel\nx\ty\t1\n", ("text", "label"), r"line 2: there are 3 cells, and 2 in the first line"),
    ("a.tsv", "a\tx\t1\na\tx\t\t1\n", ("2", "3"), r"line 2: there are 4 cells, and 3 in the first line"),
    ("a.tsv", "x\t1\n", ("1", "0"), r"line 1 has no column '0', but '1', '2'"),
    ("a.tsv", "text\tlabel\n", ("text", "label"), r"no rows"),
    ("a.jsonl", '{"text": ["x"]}\n', ("text",), r"line 1: the field 'text' is missing, or neither"),
])  # fmt: skip
def test_bad_tables_are_a_sentence_with_file_and_line(tmp_path, name, text, columns, said):
    with pytest.raises(UserError, match=said):
        read_table(write(tmp_path / name, text), columns)


CONLL = "-DOCSTART- -X- O\n\nThe DT O\nship NN B-X\n\n\nsail VB O\n"


def test_columns_of_words(tmp_path):
    path = write(tmp_path / "a.conll", CONLL)
    found = [(one.place, one.words, one.labels) for one in read_columns(path)]
    assert found == [(f"{path}, line 3", ["The", "ship"], ["O", "B-X"]), (f"{path}, line 7", ["sail"], ["O"])]
    assert read_columns(path, ("1", "2"))[1].labels == ["VB"]
    missing = "line 3 has 3 cells, and the words or labels are in column 4"
    for columns, said in ((("1", "4"), missing), (("a", "b"), "write the numbers")):
        with pytest.raises(UserError, match=said):
            read_columns(path, columns)
    with pytest.raises(UserError, match=r"line 2 has 1 cells, .* in column 2: 'sail'. Add the cell, or name"):
        read_columns(write(tmp_path / "b.conll", "the O\nsail\n"))


def test_spaces_other_than_those_between_cells_are_of_words(tmp_path):
    path = write(tmp_path / "a.conll", "10\u00a0000 \t O \r\n\u3000\u2028\n\u00a0 O\n")
    assert [(one.words, one.labels) for one in read_columns(path)] == [(["10\u00a0000"], ["O"]), (["\u00a0"], ["O"])]


def conllu(*words):
    """Lines of ten cells, of an id, a word and its part of speech."""
    return "".join(f"{id}\t{word}\t_\t{label}" + "\t_" * 6 + "\n" for id, word, label in words)


def test_comments_are_no_words_and_a_number_sign_is_one(tmp_path):
    text = "# sent_id = 1\n# text = # 1\n" + conllu(("1", "#", "SYM"), ("2", "1", "NUM")) + "\n#\n#newpar\n"
    path = write(tmp_path / "a.conllu", text + conllu(("1", "sail", "VERB")))
    found = [(one.place, one.words, one.labels) for one in read_columns(path, ("2", "4"))]
    assert found == [(f"{path}, line 3", ["#", "1"], ["SYM", "NUM"]), (f"{path}, line 8", ["sail"], ["VERB"])]
    path = write(tmp_path / "a.conll", "# SYM\n#1 NUM\n")
    assert read_columns(path)[0].words == read_columns(path, ("1", "2"))[0].words == ["#", "#1"]


def test_ranges_and_empty_nodes_of_conllu_are_no_words(tmp_path):
    words = (("1-2", "du", "_"), ("1", "de", "ADP"), ("2", "le", "DET"), ("3", "10 000", "NUM"))
    text = "# sent_id = 1\n" + conllu(*words)
    text += conllu(("3.1", "sail", "VERB")) + "\n" + conllu(("0.1", "is", "_"), ("1", "#", "SYM"))
    path = write(tmp_path / "a.conllu", text)
    found = [(one.place, one.words, one.labels) for one in read_columns(path, ("2", "4"))]
    labels = ["ADP", "DET", "NUM"]
    assert found == [(f"{path}, line 3", ["de", "le", "10 000"], labels), (f"{path}, line 9", ["#"], ["SYM"])]
    assert read_columns(path) == read_columns(path, ("2", "4")) != read_columns(path, ("1", "4"))
    with pytest.raises(UserError, match="line 10: there are 9 cells, and 10 in the first line"):
        read_columns(write(tmp_path / "b.conllu", text + "2\ta" + "\t_" * 7), ("2", "4"))


@pytest.mark.parametrize(
    "text, columns", [("1-2\tB\n3.1\tO\n", ("1", "2")), (conllu(("1-2", "1-2", "B"), ("it", "3.1", "O")), ("2", "4"))]
)
def test_what_looks_like_a_range_elsewhere_is_a_word(tmp_path, text, columns):
    (one,) = read_columns(write(tmp_path / "a.conll", text), columns)
    assert one.words == ["1-2", "3.1"]
