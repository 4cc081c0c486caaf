"""Reports of real runs: predictions equal the model's, and a browser draws the page."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertLMHeadModel

from pretrain.data import BatchDocument
from pretrain.export import export_run
from pretrain.reporting import collect
from tests.support import runs, text_data
from tests.support.browser import needs_chromium, opened
from tests.support.report_runs import eventful, prediction_lines, write_run


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return text_data.text_data(tmp_path_factory.mktemp("data"))


def recorded(run: Path) -> tuple[list[list[BatchDocument]], dict[int, dict]]:
    """The passages, equal at each start, and the answers by step."""
    records = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    asked = [record for record in records if "passages" in record]
    assert all(record == asked[0] for record in asked)
    answers = {record["step"]: record for record in records if "step" in record}
    assert {record["key"] for record in answers.values()} == {asked[0]["key"]}
    return [[BatchDocument(**document) for document in passage] for passage in asked[0]["passages"]], answers


def check_against(
    model: torch.nn.Module, passages: list[list[BatchDocument]], answer: dict, causal: bool = False
) -> int:
    """The exported model says the same of each token; how many were asked."""
    number = 0
    for document in (document for passage in passages for document in passage):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([document.seen])).logits[0]
        for prediction in document.predictions:
            place, label = prediction["place"], prediction["label"]
            assert document.original[place] == label
            expected = logits[place - causal].float().softmax(dim=0)
            best = expected.topk(3)
            assert answer["probabilities"][number] == pytest.approx(best.values.tolist(), abs=2e-4)
            assert expected[answer["ids"][number]].tolist() == pytest.approx(best.values.tolist(), abs=2e-4)
            assert answer["right"][number] == pytest.approx(float(expected[label]), abs=2e-4)
            number += 1
    assert number == len(answer["ids"]) == len(answer["right"])
    return number


def test_predictions_are_those_of_the_model_at_each_evaluation(data, tmp_path):
    run = tmp_path / "run"
    settings = {"train__steps": 8, "eval__every_steps": 4, "checkpoint__every_steps": 4, "eval__samples": 64}
    runs.succeed("train", runs.config_file(data, run, **settings), "train.steps=6")
    runs.trained(data, run, **settings)
    passages, answers = recorded(run)
    assert 3 < len(passages) < 64  # all there are; the rest of the batch is padding and asks nothing
    assert list(answers) == [4, 6, 8]
    for step in (6, 8):
        model = AutoModelForMaskedLM.from_pretrained(export_run(run, step, tmp_path / f"model-{step}")).eval()
        assert check_against(model, passages, answers[step]) > 5
    found = collect(run, tmp_path / "page.html")
    assert [(one["after_step"], one["reached"]) for one in found["marks"]["restart"]] == [(6, 6)]
    assert found["predictions"]["steps"] == [4, 6, 8]
    assert "<" not in "".join(text for text in found["predictions"]["passages"][0] if isinstance(text, str))
    assert {"Model", "Data", "Hosts", "Packages", "Command"} <= dict(found["facts"]).keys()
    assert 0 < found["speeds"]["goodput"] < 1


@pytest.mark.slow
def test_predictions_of_a_causal_model(data, tmp_path):
    run = tmp_path / "run"
    settings = {"train__steps": 4, "eval__every_steps": 4, "objective": "clm", "eval__samples": 1}
    runs.trained(data, run, **settings)
    passages, answers = recorded(run)
    model = BertLMHeadModel.from_pretrained(export_run(run, None, tmp_path / "model")).eval()
    assert check_against(model, passages, answers[4], causal=True) > 20


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_processes(data, tmp_path):
    said = []
    for name, zero, world in (("one", 1, 1), ("more", 3, 2)):
        settings = {"train__steps": 2, "eval__every_steps": 2, "zero__stage": zero}
        said.append(recorded(runs.trained(data, tmp_path / name, world, **settings)))
    (passages, one), (others, more) = said
    assert passages == others
    assert more[2]["right"] == pytest.approx(one[2]["right"], abs=2e-4)


@pytest.mark.slow
@needs_chromium()
@pytest.mark.parametrize("options", [(), ("--force-dark-mode", "--window-size=390,800")], ids=["wide", "phone"])
def test_a_browser_draws_the_page(tmp_path, options):
    run = write_run(tmp_path / "run", eventful())
    (run / "predictions.jsonl").write_bytes(b"".join(prediction_lines("k", [10, 20, 30])))
    runs.succeed("report", run)
    dom, console = opened(run / "report.html", *options)
    assert console == []
    charts = re.findall(r'<section class="card chart.*?</section>', dom, re.S)
    assert len(charts) == 5
    for chart in charts:
        points = max((len(line.split()) for line in re.findall(r'points="([^"]*)"', chart)), default=0)
        assert points >= 30, chart[:300]
        assert "NaN" not in chart
        assert len(re.findall(r"<text", chart)) >= 4  # ticks
    events = ("1 restart", "1 rollback", "1 skipped step", "1 loss spike", "1 checkpoint")
    for words in (*events, "repeated", "2 tokens right"):
        assert words in dom, words
    assert 'class="guess right"' in dom
    assert 'class="guess wrong"' in dom
