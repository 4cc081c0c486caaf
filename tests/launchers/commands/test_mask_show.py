"""`maskwright mask show`: the masks of training, whole units, and one-line refusals."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.tokenizer import train
from launchers.app import app
from launchers.commands.marked_text import plain_text
from launchers.commands.mask_view import show_data, show_text
from pretrain.config import Config
from pretrain.data import BatchDocument, BatchRows, BatchStage, Loader, Sources
from pretrain.masking import Vocabulary
from tests.support.prep import prepare_files

TEXT = "the old ship left the harbour before the storm , and nobody believed that marmaduke would come back ."
STRATEGIES: dict[str, Any] = {
    "token": "token",
    "whole_word": "whole_word",
    "span": "span",
    "ngram": "ngram",
    "mix": {"token": 1, "span": 1},
}


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request, tmp_path_factory) -> Path:
    """A tokenizer that knows the text's characters, and cuts most of its words."""
    folder = tmp_path_factory.mktemp("show") / request.param
    train([TEXT], request.param, {"wordpiece": 60, "bpe": 280}[request.param], folder)
    return folder


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("show") / "wordpiece"
    train([TEXT], "wordpiece", 60, folder)
    return folder


@pytest.fixture(scope="module")
def data(tokenizer, tmp_path_factory) -> Path:
    """A data set of the text alone."""
    folder = tmp_path_factory.mktemp("show-data")
    (folder / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    prepare_files([folder / "text.jsonl"], tokenizer, folder / "data")
    return folder / "data"


def config_of(data: Path, rows: int = 1, seq_len: int = 128, **masking: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": "unused", "seed": 3},
            "data": {"train": str(data), "seq_len": seq_len},
            "masking": masking,
            "train": {"steps": 4, "global_batch_size": rows},
        }
    )


def trained_on(config: Config, steps: int) -> list[list[list[BatchDocument]]]:
    """The documents of each row of the first steps of a run."""
    sources = Sources.open(config)
    loader = Loader.for_training(config, sources, BatchStage.of_run(config, 1), 0)
    position, found = loader.mixture.start(), []
    for number in range(steps):
        step = loader.step(number, position)
        found.append(BatchRows.of(step.batches).documents(Vocabulary.of(sources.tokenizer)))
        position = step.after
    loader.close()
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("more", [{"rate": {"schedule": "linear", "start": 0.4, "end": 0.2}}, {"static_epochs": 2}])
def test_masks_are_those_of_training(data, tokenizer, strategy, more):
    """The text fills one row, so that each step of a run with batches of one row is another epoch's visit."""
    config = config_of(data, strategy=STRATEGIES[strategy], **more)
    trained = trained_on(config, steps=4)
    for shown in (show_text(TEXT, str(tokenizer), config, 8), show_data(config, 8)):
        steps = list(shown.steps(4))
        assert [[row.documents for row in step.rows] for step in steps] == trained
        assert [step.epoch for step in steps] == ([0, 1, 0, 1] if more.get("static_epochs") else [0, 1, 2, 3])
    assert trained[0] != trained[1]


def test_rows_of_a_data_set_are_those_of_training(data):
    config = config_of(data, rows=3, seq_len=16, strategy="whole_word", rate=0.3)
    shown = show_data(config, 3)
    assert [[row.documents for row in step.rows] for step in shown.steps(1)] == trained_on(config, steps=1)
    everything = show_data(config, 10**9)
    assert everything.rows.n_rows == shown.rows.n_rows + shown.rows.n_others > 3


def test_documents_that_share_a_row(wordpiece, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(TEXT.split()))
    prepare_files([tmp_path / "text.txt"], wordpiece, tmp_path / "data")
    (step,) = show_data(config_of(tmp_path / "data", strategy="whole_word", rate=0.5), 1).steps(1)
    (row,) = step.rows
    assert len(row.documents) > 2
    for document, units, text in zip(row.documents, row.units, row.texts, strict=True):
        (unit,) = set(units[1:-1])  # each is a word
        assert all(unit not in other[1:-1] for other in row.units if other is not units)
        assert len(document.predictions) in (0, len(document.original) - 2)
        assert plain_text(text).count("⟦") == bool(document.predictions)


def test_a_long_text_is_cut_into_rows_in_its_order(data, tokenizer):
    config = config_of(data, seq_len=16)
    whole = show_text(TEXT, str(tokenizer), config, 10**9)
    (step,) = whole.steps(1)
    (one_row,) = show_text(TEXT, str(tokenizer), config_of(data), 1).steps(1)
    ids = [document.original[1:-1] for row in step.rows for document in row.documents]
    assert [id for row in ids for id in row] == one_row.rows[0].documents[0].original[1:-1]
    assert all(len(row) == 14 for row in ids[:-1])
    assert next(show_data(config, 10**9).steps(1)).rows == step.rows
    first = show_text(TEXT, str(tokenizer), config, 2)
    assert (first.rows.n_rows, first.rows.n_others) == (2, whole.rows.n_rows - 2)
    assert next(first.steps(1)).rows == step.rows[:2]


def test_counts_and_units(data, tokenizer):
    config = config_of(data, strategy="span", rate=0.3, span={"max_words": 3})
    shown = list(show_text(TEXT, str(tokenizer), config, 1).steps(30))
    for step in shown:
        (document,), (units,) = step.rows[0].documents, step.rows[0].units
        places = [prediction.place for prediction in document.predictions]
        numbers = [units[place] for place in places]
        assert (step.selected, step.units) == (len(places), len(set(numbers)))
        assert step.tokens == len(document.original) - 2
        for unit in set(numbers):  # whole, in one piece, and of one fate
            mine = [place for place, number in enumerate(units[1:-1], 1) if number == unit]
            assert mine == [place for place in places if units[place] == unit]
            assert mine == list(range(mine[0], mine[-1] + 1))
            assert len({p.kind for p in document.predictions if p.place in mine}) == 1
        assert plain_text(step.rows[0].texts[0]).count("⟦") == step.units
    assert any(step.units < step.selected for step in shown)
    assert {"mask", "random", "kept"} == {kind for step in shown for kind, count in step.fates.items() if count}


def command(*arguments: object) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, ["mask", "show", *map(str, arguments)])
    return result.exit_code, result.output, result.exception


def test_the_text_is_printed(wordpiece):
    code, output, error = command(TEXT, "--tokenizer", wordpiece, "run.seed=1", "masking.rate=0.3", "--steps", 3)
    assert code == 0, error
    head, legend, *rest = output.splitlines()
    assert head == "strategy token, rate 0.3, seed 1, rows of 128 slots"
    assert legend.startswith("⟦word⟧ the model sees [MASK], ")
    assert "as one" not in legend
    steps = re.findall(r"step (\d), epoch (\d): (\d+) of (\d+) ordinary tokens \((.+)%\) in (\d+) units: (.*)", output)
    assert [step[:2] for step in steps] == [("1", "0"), ("2", "1"), ("3", "2")]
    texts = [line[2:] for line in rest if line.startswith("- ")]
    assert len(set(texts)) == 3
    for (_, _, selected, tokens, share, units, fates), text in zip(steps, texts, strict=True):
        assert re.sub(r"⟦(.+?)(→[^⟧]+|=)?⟧", r"\1", text) == TEXT
        assert int(selected) == int(units) == text.count("⟦") == round(0.3 * int(tokens))
        assert float(share) == pytest.approx(100 * int(selected) / int(tokens), abs=0.06)
        masked, random, kept = (int(number) for number in re.findall(r"\d+", fates))
        assert (random, kept) == (text.count("→"), text.count("=⟧"))
        assert masked == int(selected) - random - kept
    assert "\x1b" not in output


def test_units_are_seen(wordpiece):
    code, output, _ = command(
        "masking.strategy=whole_word", TEXT, "masking.rate=0.4", "--tokenizer", wordpiece / "tokenizer.json"
    )
    assert code == 0
    assert "⟦two words⟧ were selected as one" in output
    texts = [line[2:] for line in output.splitlines() if line.startswith("- ")]
    assert len(texts) == 4
    for text in texts:
        assert all(part in TEXT.split() for part in re.findall(r"⟦(.+?)(?:→[^⟧]+|=)?⟧", text))
    output = command(TEXT, "masking.strategy=span", "masking.rate=0.5", "--tokenizer", wordpiece)[1]
    assert "strategy span (p 0.2, up to 10 words), rate 0.5" in output
    assert re.search(r"- .*⟦\w+ \w+", output)


def test_settings_of_a_config_file(wordpiece, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("masking: {strategy: {token: 1, ngram: 3}, ngram: 2, rate: 0.2}\nrun: {seed: 5}\n")
    rate = "masking.rate={schedule: linear, start: 0.6, end: 0.2}"
    options = ("--config", config, "--tokenizer", wordpiece, TEXT * 3)
    code, output, _ = command(rate, *options, "data.seq_len=32", "--rows", 2, "--steps", 3)
    assert code == 0
    assert output.startswith(
        "strategy token with weight 1 and ngram (2 words) with weight 3, rate 0.6 to 0.2 (linear), seed 5, "
        "rows of 32 slots"
    )
    assert re.findall(r"epoch (\d), rate ([\d.]+):", output) == [("0", "0.6"), ("1", "0.4"), ("2", "0.2")]
    assert re.findall(r"^row (\d)$", output, re.M) == ["0", "1"] * 3
    more, every = map(int, re.findall(r"(\d+) more rows; --rows (\d+) shows all", output)[0])
    assert every == more + 2


def test_json(wordpiece):
    code, output, _ = command(TEXT, "masking.strategy=span", "--tokenizer", wordpiece, "--json", "--steps", 2)
    assert code == 0
    first, second = map(json.loads, output.splitlines())
    assert (first["step"], first["epoch"], second["step"], second["epoch"]) == (1, 0, 2, 1)
    assert first["rows"] != second["rows"]
    (document,) = second["rows"][0]["documents"]
    predictions = document["predictions"]
    assert second["selected"] == len(predictions) == second["mask"] + second["random"] + second["kept"]
    assert second["units"] == len({prediction["unit"] for prediction in predictions})
    assert second["tokens"] == len(document["original"]) - 2
    assert all(document["original"][p["place"]] == p["label"] for p in predictions)
    assert document["text"].count("⟦") == second["units"]


def test_nothing_to_predict(wordpiece):
    code, output, _ = command("中", "--tokenizer", wordpiece)
    assert code == 0
    assert "step 4, epoch 3: 0 of 0 ordinary tokens (0.0%) in 0 units" in output


def test_refusals(wordpiece, tmp_path):
    (tmp_path / "bare").mkdir()
    settings = json.loads((wordpiece / "tokenizer.json").read_text())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] != "[MASK]"]
    del settings["model"]["vocab"]["[MASK]"]
    (tmp_path / "bare" / "tokenizer.json").write_text(json.dumps(settings))
    known = ("--tokenizer", wordpiece)
    for arguments, sentence in [
        ((), "Give either a text"),
        (("a", "--data", "x"), "Give either a text"),
        (("a", "b"), "'a' and 'b' are two texts"),
        (("a",), "A text needs --tokenizer"),
        (("--data", "x", *known), "leave out --tokenizer"),
        (("--data", tmp_path), "not a data set folder"),
        (("", *known), "the text is empty"),
        (("\x01", *known), "the text has no tokens"),
        (("a", "--tokenizer", tmp_path / "none.json"), "No tokenizer at "),
        (("a", "--tokenizer", tmp_path / "bare"), "has no mask token"),
        (("a", "masking.strateg=span", *known), "Unknown key masking.strateg. Did you mean masking.strategy?"),
        (("a", "masking.rate=2", *known), "masking.rate must be less than 1, not 2."),
        (("a", "objective=clm", *known), "not masked language modelling"),
        (("a", "--config", tmp_path / "none.yaml", *known), "No config file at "),
    ]:
        code, _, error = command(*arguments)
        assert code == 1
        assert isinstance(error, UserError), arguments
        assert sentence in str(error)


def test_another_objective_has_no_masks(data):
    config = config_of(data).model_copy(update={"objective": "repair"})
    with pytest.raises(UserError, match="not masked language modelling"):
        show_data(config, 1)


def test_torch_is_not_imported(wordpiece):
    code = (
        "import sys; from launchers.app import app\n"
        f"app(['mask', 'show', 'the ship', '--tokenizer', {str(wordpiece)!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, stdout=subprocess.DEVNULL).returncode == 0
