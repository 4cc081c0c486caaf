"""Each experiment runs with --quick, from its inputs to its page."""

import copy
import importlib
import json
import sys
from io import TextIOWrapper

import pytest
import zstandard

from benchmarks.harness import BOOKS
from experiments import common, small_models
from tests.experiments.test_dependencies import TREEBANK
from tests.support.forked import ROOT, run_forked

pytestmark = pytest.mark.slow  # run by `make test-experiments`

WORDS = ["ship", "sea", "man", "house", "time", "day"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Inputs of all experiments: text, BLiMP, SST-2, a treebank, word pairs and translations; and runs in `small`."""
    folder = tmp_path_factory.mktemp("experiments")
    with open(BOOKS, "rb") as file:
        text = TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8").read(300_000)
    texts = [json.loads(line)["text"] for line in text.split("\n")[:-1]]
    documents = [text[first : first + 1000] for text in texts for first in range(0, len(text), 1000)][:150]
    lines = [" ".join(document.split()[:12]) for document in documents]
    files = {
        "books.jsonl": "".join(json.dumps({"text": document}) + "\n" for document in documents),
        "source.txt": "\n".join(lines) + "\n",
        "target.txt": "\n".join(line[::-1] for line in lines) + "\n",
        "few.txt": "\n".join(lines[:5]) + "\n",
        "sst2.tsv": "sentence\tlabel\n" + "".join(f"{n} ships\t{n // 3 % 2}\n" for n in range(80)),
        "blimp.jsonl": "".join(
            json.dumps({"sentence_good": f"the {word} is", "sentence_bad": f"{word} the is", "UID": uid, "field": uid})
            + "\n"
            for uid in ("one", "two", "three")
            for word in WORDS
        ),
        "treebank.conllu": TREEBANK + "\n" + TREEBANK,
        "suite.yaml": "tasks: {a: {task: classification, train: sst2.tsv, valid: sst2.tsv, lr: [1e-3], epochs: [1]}}",
        "pairs.txt": "".join(f"{word} {other} {n}\n" for n, word in enumerate(WORDS) for other in ("the", "and")),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def forked(command, environment, folder, seconds=None):
    done = run_forked(command, environment, folder, timeout=300)
    print(done.stdout[-2000:], done.stderr[-4000:])
    return done.returncode


SST2 = "--train sst2.tsv --valid sst2.tsv --lr 1e-3"
TASKS = f"--pairs blimp.jsonl {SST2}"
TEXT = "--input books.jsonl --work small"
EXPERIMENTS = [  # in this order: later ones use models of earlier ones
    ("word_order", f"{TEXT} {TASKS}", "| natural |"),
    ("selected_tokens", f"{TEXT} {TASKS}", "| rare |"),
    ("objectives", f"{TEXT} {TASKS}", "## At equal time"),
    ("merges", f"{TEXT}", "linear-decay, all"),
    ("tasks", "small/models/natural --suite suite.yaml --work tasks", "| random weights |"),
    ("learning_rate_transfer", TEXT, "loss at 0.001 minus best"),
    ("loss_and_compute", TEXT, "Predicted before it began"),
    ("layers.by_objective", f"{TEXT} --also models/1-grams --shuffled", "| 1-grams | shuffled words | predicted |"),
    ("dependencies", "small/models/natural --treebank treebank.conllu --work trees", "linear chain"),
    ("word2vec", f"small/models/natural --data small/data/train --similarity pairs.txt {SST2} --work w", "CBOW"),
    ("starting_points", "--train source.txt --valid target.txt --general small/models/natural --work start", "bits a"),
    ("translation", "--train source.txt target.txt --valid few.txt few.txt --work translation", "BLEU"),
    ("babylm", "--input books.jsonl --work babylm --pairs blimp.jsonl", "| causal | averaged |"),
    ("babylm", "--gpu --minutes 600 --text babylm --work gpu --pairs blimp.jsonl", "| masked | averaged |"),
    ("post_norm", "--input books.jsonl --work post", "| pre-norm-0.001-1 |"),
]


@pytest.mark.parametrize(("name", "words", "shown"), EXPERIMENTS, ids=[name for name, *_ in EXPERIMENTS])
def test_an_experiment_runs_from_its_inputs_to_its_page(name, words, shown, folder, monkeypatch):
    module = importlib.import_module(f"experiments.{name}")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(common, "run_module", forked)
    config = copy.deepcopy(small_models.CONFIG)
    out = folder / "pages" / f"{name}{len(words)}.md"
    monkeypatch.setattr(sys, "argv", [str(ROOT / "experiments" / "x.py"), *words.split(), "--quick", "--out", str(out)])
    module.main()
    assert shown in out.read_text()
    small_models.CONFIG.clear()
    small_models.CONFIG.update(config)


def test_every_experiment_is_tried():
    scripts = {path for path in (ROOT / "experiments").rglob("*.py") if '__name__ == "__main__"' in path.read_text()}
    names = {".".join(path.relative_to(ROOT / "experiments").with_suffix("").parts) for path in scripts}
    assert names - {"layers.__main__"} == {name for name, *_ in EXPERIMENTS}
