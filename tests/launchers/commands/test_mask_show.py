"""`maskwright mask show`: the masks of training, whole units, and one-line refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.format import WeightList
from data_prep.tokenizer import train_tokenizer
from launchers.commands.mask_show import encode, pieces
from pretrain.config import Config
from pretrain.data import BatchDocument, BatchRows, MaskedVisit, Sources, masked_visits
from pretrain.masking import Vocabulary
from tests.support.batches import first_batches
from tests.support.configs import least_config
from tests.support.in_process import invoke
from tests.support.prep import prepare_files

TEXT = "the old ship left the harbour before the storm , and nobody believed that marmaduke would come back ."
STRATEGIES: dict[str, Any] = {"token": "token", "whole_word": "whole_word", "mix": {"token": 1, "span": 1}}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> Path:
    """The folder of tokenizers that know the text's characters, and cut most of its words."""
    folder = tmp_path_factory.mktemp("show")
    for kind, size in (("wordpiece", 60), ("bpe", 280)):
        train_tokenizer([TEXT], kind, size, folder / kind)
    return folder


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request, tokenizers) -> Path:
    return tokenizers / request.param


@pytest.fixture(scope="module")
def wordpiece(tokenizers) -> Path:
    return tokenizers / "wordpiece"


@pytest.fixture(scope="module")
def data(tokenizer, tmp_path_factory) -> Path:
    """A data set of the text alone."""
    folder = tmp_path_factory.mktemp("show-data")
    (folder / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    prepare_files([folder / "text.jsonl"], tokenizer, folder / "data")
    return folder / "data"


def config_of(data: Path, seq_len: int = 128, **masking: Any) -> Config:
    sections = {"data": {"train": str(data), "seq_len": seq_len}, "masking": masking}
    return least_config(run={"seed": 3}, train={"steps": 4, "global_batch_size": 1}, **sections)


def visits(tokenizer: Path, config: Config, steps: int) -> list[MaskedVisit]:
    ids, word_starts, vocabulary, _ = encode(TEXT, str(tokenizer))
    return list(masked_visits(config, vocabulary, ids, word_starts, steps))


def trained_on(config: Config, steps: int) -> list[BatchDocument]:
    """The document in the row of each of the first steps of a run."""
    vocabulary, documents = Vocabulary.of(Sources.open(config).tokenizer), []
    for batch in first_batches(config, steps):
        ((document,),) = BatchRows.of([batch]).documents(vocabulary)
        documents.append(document)
    return documents


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masks_are_those_of_training(data, tokenizer, strategy):
    """The text fills one row, so that each step of a run with batches of one row is another epoch's visit."""
    config = config_of(data, strategy=STRATEGIES[strategy], rate={"schedule": "linear", "start": 0.4, "end": 0.2})
    trained, shown = trained_on(config, steps=4), visits(tokenizer, config, 4)
    assert [visit.document for visit in shown] == trained
    assert [visit.epoch for visit in shown] == [0, 1, 2, 3]
    assert trained[0] != trained[1]


def test_the_first_row_of_a_long_text(data, tokenizer):
    (first,), (whole,) = (visits(tokenizer, config_of(data, seq_len), 1) for seq_len in (16, 128))
    assert first.document.original[1:-1] == whole.document.original[1:15]
    assert first.document == trained_on(config_of(data, 16), 1)[0]


def shown(*arguments: object) -> str:
    return invoke("mask", "show", *arguments).output


def test_a_list_of_weights_is_read_again_at_each_call(wordpiece, tmp_path):
    vocabulary, found = encode(TEXT, str(wordpiece))[2], set()
    for weight in (1.0, 1e-6):
        WeightList(vocabulary.tokenizer_sha256, [weight, 1.0] * (vocabulary.size // 2)).write(tmp_path / "list")
        found.add(shown(TEXT, "--tokenizer", wordpiece, f"masking.selection.weights={tmp_path}/list"))
    assert len(found) == 2


def test_the_text_is_printed(wordpiece):
    output = shown(TEXT, "--tokenizer", wordpiece, "run.seed=1", "masking.rate=0.3", "--steps", 3)
    head, split, legend, *rest = output.splitlines()
    assert head == "strategy token, rate 0.3, seed 1, rows of 128 slots"
    assert split.startswith("split into tokens, · inside words: the ")
    assert legend.startswith("⟦word⟧ the model sees [MASK], ")
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
    assert "note:" not in output


def test_a_dot_is_where_a_word_is_split(tokenizer):
    ids, word_starts, _, spelling = encode(TEXT, str(tokenizer))
    split = pieces(spelling, ids, word_starts)
    assert split.replace("·", "") == TEXT
    assert split.count("·") == len(ids) - int(word_starts.sum()) > 0


def test_units_are_seen(wordpiece):
    output = shown(TEXT, "masking.strategy=whole_word", "masking.rate=0.4", "--tokenizer", wordpiece / "tokenizer.json")
    assert "⟦two words⟧ were selected as one" in output
    texts = [line[2:] for line in output.splitlines() if line.startswith("- ")]
    assert len(texts) == 4
    for text in texts:
        assert all(part in TEXT.split() for part in re.findall(r"⟦(.+?)(?:→[^⟧]+|=)?⟧", text))
    nothing = shown("中", "--tokenizer", wordpiece)
    assert "step 4, epoch 3: 0 of 0 ordinary tokens (0.0%) in 0 units" in nothing
    output = shown(TEXT, "masking.strategy=span", "masking.rate=0.5", "--tokenizer", wordpiece)
    assert "strategy span, rate 0.5, span {max_words: 10, p: 0.2}" in output
    assert re.search(r"- .*⟦\w+ \w+", output)


def test_settings_of_a_config_file(wordpiece, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("masking: {strategy: {token: 1, span: 3}, span: {p: 0.5}, rate: 0.2}\nrun: {seed: 5}\n")
    rate = "masking.rate={schedule: linear, start: 0.6, end: 0.2}"
    options = ("--config", config, "--tokenizer", wordpiece, TEXT * 3)
    note, output = shown(*options, rate, "data.seq_len=32", "--steps", 3).split("\n", 1)
    assert re.fullmatch(r"note: the first 30 of \d+ tokens are shown\. Raise data\.seq_len for more\.", note)
    rates = "strategy {span: 3.0, token: 1.0}, rate {end: 0.2, schedule: linear, start: 0.6}, "
    assert output.startswith(rates + "span {max_words: 10, p: 0.5}, seed 5, rows of 32 slots")
    assert re.findall(r"epoch (\d), rate ([\d.]+):", output) == [("0", "0.6"), ("1", "0.4"), ("2", "0.2")]


def test_refusals(wordpiece, tmp_path):
    known = ("--tokenizer", wordpiece)
    for arguments, sentence in [
        (("a", "b", *known), "'b' is not KEY=VALUE"),
        (("", *known), "the text is empty"),
        (("\x01", *known), "the text has no tokens"),
        (("a", "masking.strateg=span", *known), "Unknown key masking.strateg. Did you mean masking.strategy?"),
        (("a", "objective=clm", *known), "not masked language modelling"),
        (("a", "--config", tmp_path / "none.yaml", *known), "No config file at "),
    ]:
        with pytest.raises(UserError) as error:
            shown(*arguments)
        assert sentence in str(error.value)
