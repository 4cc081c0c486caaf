"""`python -m experiments.layers`: figures and pictures from models and a data set."""

import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from experiments.layers import position_sample
from experiments.layers.__main__ import app
from experiments.layers.layer_analysis import Information, Similarity, analyze, states_of
from experiments.layers.measures import entropy
from experiments.layers.position_sample import Places, PositionSample, SampleSettings, held_out_rows, masked_sample
from pretrain.export import load_language_model
from pretrain.masking import Vocabulary
from tests.support.tiny_models import tiny_model
from tests.support.wordpiece_set import source, wordpiece_set

SETTINGS = SampleSettings(positions=400, tokens=6, clusters=30, seq_len=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set, a masked and a causal model of other depth."""
    folder = tmp_path_factory.mktemp("analyze")
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 11, int(rng.integers(8, 22))).tolist() for _ in range(60)]
    for name, texts in (("data", documents), ("shuffled", [document[::-1] for document in documents])):
        wordpiece_set(folder / name, [texts], [source("text", "", 0, 1, 60, sum(map(len, texts)))])
    tokenizer = folder / "data" / "tokenizer" / "tokenizer.json"
    tiny_model(folder / "mlm", tokenizer)
    tiny_model(folder / "clm", tokenizer, causal=True, layers=3)
    return folder


@pytest.mark.parametrize("name,make", [("mlm", masked_sample), ("clm", position_sample.plain_sample)])
def test_states_are_those_of_the_text_alone_at_each_position(folder, name, make):
    dataset = Dataset(folder / "data")
    vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
    rows = held_out_rows(dataset, SETTINGS, vocabulary)
    sample = make(rows, vocabulary, SETTINGS)
    model, causal = load_language_model(folder / name)
    assert causal == (name == "clm")
    found = states_of(model, sample, vocabulary.pad)
    assert set(found) == set(sample.places)
    for kind, places in sample.places.items():
        assert found[kind].shape == (model.config.num_hidden_layers + 1, len(places), 16)
        for number in range(0, len(places), 37):
            text = sample.tokens[places.row[number]]
            with torch.inference_mode():
                alone = model(torch.from_numpy(text[text != 0])[None], output_hidden_states=True).hidden_states
            expected = [layer[0, places.column[number]].numpy() for layer in alone]
            np.testing.assert_allclose(found[kind][:, number], expected, atol=1e-4)


def planted(
    kind: str, states: list[np.ndarray], seen: np.ndarray, target: np.ndarray
) -> tuple[list[Similarity], list[Information]]:
    number = np.arange(len(seen))
    places = {kind: Places(number, number, seen, target, number % 10)}
    sample = PositionSample(np.zeros((1, 1), np.int64), places, np.arange(8))
    return analyze({kind: np.stack(states).astype(np.float32)}, sample, SETTINGS)


def test_a_token_that_is_forgotten_while_the_next_is_found_shows():
    rng = np.random.default_rng(1)
    seen, target = rng.integers(0, 8, (2, 2000))
    of_seen, of_target = (rng.normal(size=(8, 16))[ids] * 10 for ids in (seen, target))
    noise = rng.normal(size=(4, 2000, 16))
    states = [of_seen, of_seen + of_target, noise[0] * 5 + of_target, of_target]
    similarities, information = planted("all", [s + n * 0.1 for s, n in zip(states, noise, strict=True)], seen, target)
    told = {one.of: [round(at.value, 1) for at in one.at] for one in information}
    assert told["seen"][0] == 1
    assert told["target"][0] == 0
    assert told["seen"][3] == 0
    assert told["target"][3] == 1
    assert {len(one.between) for one in similarities} == {3}
    assert [one.entropy for one in information] == [pytest.approx(entropy(np.bincount(ids))) for ids in (seen, target)]
    cka = next(one for one in similarities if one.measure == "cka")
    assert cka.between[0].value > 0.4 > 10 * max(cka.chance)
    for one in [*cka.between, *information[0].at]:
        assert one.low <= one.value <= one.high


def test_changes_between_layers_are_paired():
    rng = np.random.default_rng(3)
    seen = rng.integers(0, 8, 2000)
    of_seen, noise = rng.normal(size=(8, 16))[seen] * 10, rng.normal(size=(2, 2000, 16)) * 25
    _, information = planted("all", [of_seen, of_seen + noise[0], of_seen], seen, rng.integers(0, 8, 2000))
    one = next(one for one in information if one.of == "seen")
    for changes, expected in (
        (one.since_first, [0, one.at[1].value - one.at[0].value, 0]),
        (one.until_last, [0, one.at[2].value - one.at[1].value, 0]),
    ):
        assert [change.value for change in changes] == pytest.approx(expected)
        assert [change.high - change.low for change in changes[::2]] == [0, 0]  # equal clusters have no difference
        assert changes[1].low <= changes[1].value <= changes[1].high
    assert one.since_first[1].high < 0 < one.until_last[1].low


def test_rare_tokens_are_not_asked_for_and_few_positions_are_left_out():
    rng = np.random.default_rng(2)
    seen, target = rng.integers(0, 8, 500), rng.integers(0, 500, 500)  # about 8 of the targets are frequent ones
    similarities, information = planted("all", [rng.normal(size=(500, 16))] * 2, seen, target)
    assert [one.of for one in information] == ["seen"]
    assert [one.between[0].value for one in similarities] == [pytest.approx(1), pytest.approx(1)]
    few = np.arange(80) % 8
    with pytest.raises(UserError, match="fewer than 100 positions of any kind"):
        planted("all", [np.ones((80, 4))] * 2, few, few)


QUICK = ["--positions", 300, "--tokens", 6, "--clusters", 20, "--seq-len", 24]


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.output


def test_the_command_measures_models_of_any_depth_and_draws_them(folder, tmp_path):
    options = [*QUICK, "--shuffled", folder / "shuffled", "--out", tmp_path / "out", "--json", tmp_path / "o.json"]
    output = run(folder / "mlm", folder / "clm", "--data", folder / "data", *options)
    assert "clm, 3 layers of 16, shuffled words text" in output
    for name in ("similarity", "information"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["settings"]["seq_len"] == 24
    for name, depth in (("mlm", 2), ("clm", 3)):
        texts = found["models"][str(folder / name)]
        assert list(texts) == ["natural", "shuffled words"]
        for text in texts.values():
            assert (text["objective"], text["layers"], text["hidden"]) == (name, depth, 16)
            assert [len(one["between"]) for one in text["similarities"]] == [depth] * len(text["similarities"])
            assert [len(one["at"]) for one in text["information"]] == [depth + 1] * len(text["information"])
            kinds = {"all"} if name == "clm" else {"predicted", "unmasked"}
            assert {one["kind"] for one in text["similarities"]} == kinds
    causal = found["models"][str(folder / "clm")]
    assert causal["natural"]["similarities"] != causal["shuffled words"]["similarities"]


def test_a_translation_model_is_measured_without_masks(folder, tmp_path):
    model = shutil.copytree(folder / "mlm", tmp_path / "prefix")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"prefix_sep_token_id": 3}))
    run(model, "--data", folder / "data", *QUICK, "--json", tmp_path / "found.json")
    text = json.loads((tmp_path / "found.json").read_text())["models"][str(model)]["natural"]
    assert text["objective"] == "prefix"
    assert {one["kind"] for one in text["similarities"]} == {"all"}


def test_what_too_little_text_leaves_out_is_said_and_not_drawn(folder, tmp_path):
    options = ["--data", folder / "data", "--positions", 200, "--tokens", 2, "--seq-len", 24, "--out", tmp_path]
    (tmp_path / "information.png").write_text("of an older run")
    output = run(folder / "mlm", *options, "--clusters", 199)
    assert "Information is not shown: too few positions" in output
    assert "information at layer" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["similarity.png"]


def test_what_does_not_fit_is_said_in_a_sentence(folder, tmp_path):
    data = ["--data", folder / "data"]
    for arguments, message in [
        ([folder / "mlm", *data, "--clusters", 100], "--clusters 100 is too low for --tokens 100"),
        ([folder / "mlm", *data, "--clusters", 1100, "--positions", 1100], "must be lower than --positions 1100"),
        ([folder / "mlm", *data, "--out", "/proc/layers"], "Cannot write to /proc/layers"),
        ([folder / "mlm", *data, "--seq-len", 64], "takes texts of 48 tokens at most"),
    ]:
        with pytest.raises(UserError, match=message):
            run(*arguments)
