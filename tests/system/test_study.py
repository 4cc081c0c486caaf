"""A study of real trainings, evaluations and fine-tunings with a stop in between; and its page in a browser."""

import itertools
import json
import re
import signal
from pathlib import Path

import mlflow
import pytest

from evaluation.study import Study, run_study, write_study_report
from pretrain.run import JournalReader
from tests.support import runs, text_data
from tests.support.browser import chromium, needs_chromium
from tests.support.study_runs import Pretended, kept, study_config, study_data

PAIRS = [("the captain saw the red ship.", "captain the saw the red ship."), ("a sailor found her letter.", "a found.")]


@pytest.mark.slow
def test_a_study_is_stopped_and_goes_on_to_its_report(tmp_path):
    """Two arms, two seeds, of a handful of steps: every run is there in the end, with
    the figures of the real commands, and a child of an MLflow run; finished work is not repeated."""
    data = text_data.text_data(tmp_path)
    changes = {"train__steps": 12, "eval__every_steps": 4, "checkpoint__every_steps": 4}
    config = runs.config_file(data, tmp_path / "study", **changes)
    pairs, task = tmp_path / "pairs.jsonl", tmp_path / "task.tsv"
    lines = [{"sentence_good": good, "sentence_bad": bad, "UID": "order", "field": "f"} for good, bad in PAIRS]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [f"{text}\t{number % 2}\n" for number, text in enumerate(text_data.sentences(40))]
    task.write_text("sentence\tlabel\n" + "".join(rows))
    words = ["study", "sweep", config, "--over", "masking.strategy=token,span", "--seeds", "2", "--pairs", pairs]
    words += ["--finetune", f"--task classification --train {task} --valid {task} --seeds 1 --epochs 1"]

    begun = runs.start_maskwright(tmp_path / "log", *words, real=True)
    first, second = (tmp_path / f"study/runs/strategy={arm}/seed-1" for arm in ("token", "span"))
    runs.wait_for_step(second, 1, seconds=900)
    begun.send_signal(signal.SIGINT)
    assert begun.wait(300) == 75, (tmp_path / "log").read_text()
    assert "resumes it" in (tmp_path / "log").read_text()
    before = (first / "study.log").read_text(), (first / "study.json").stat().st_mtime_ns

    gone_on = runs.start_maskwright(tmp_path / "log", "study", "run", tmp_path / "study", real=True)
    assert gone_on.wait(1800) == 0, (tmp_path / "log").read_text()
    assert ((first / "study.log").read_text(), (first / "study.json").stat().st_mtime_ns) == before
    assert [entry.step for entry in JournalReader(second / "journal.jsonl").entries()] == [*range(1, 13)]
    found = json.loads((tmp_path / "study/report.json").read_text())
    values, tokens = found["values"], found["values"]["tokens"]
    assert set(values) >= {"held_out", "masked_accuracy", "pairs", "downstream", "seconds", "tokens_per_second"}
    assert len(values["held_out"]) == 2
    assert found["missing"] == []
    assert tokens["strategy=token"] == tokens["strategy=span"], "the same rows"
    assert (tmp_path / "study/report.html").stat().st_size > 20_000

    tracked = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").search_runs(["1"], max_results=100)
    parents = {one.info.run_name: one.info.run_id for one in tracked if "mlflow.parentRunId" not in one.data.tags}
    of = [one.data.tags["mlflow.parentRunId"] for one in tracked if "mlflow.parentRunId" in one.data.tags]
    assert {name: of.count(parent) for name, parent in parents.items()} == {"study": 4}


@pytest.fixture
def config(tmp_path) -> Path:
    """The config of a study whose trainings are pretended."""
    return study_config(tmp_path, study_data(tmp_path / "data"))


@pytest.mark.slow
@needs_chromium()
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_the_page_of_a_study(config, width):
    """Nine lines, so that colours come again with dashes; no message in the console."""
    over = ["optim.lr=1e-4,1e-3,1e-2,1e-1", "model.size.hidden=32,64,96", "masking.strategy=token,span,whole_word"]
    study = kept(config, over=over, seeds=3)
    run_study(study, Pretended({arm.name: 3.0 + n for n, arm in enumerate(study.arms)}), lambda line: None)
    page = write_study_report(Study.open(study.folder))
    with chromium(f"--window-size={width},900") as browser:
        browser.open(page.as_uri(), "Results", "Picture", "hidden=64,strategy=span", "minus lr=0.0001")
        dom = browser.driver.execute_script("return document.documentElement.outerHTML")
        lines = re.findall(r'<polyline class="line points c\d d\d" points="([^"]*)"', dom)
        assert len(lines) == 9
        for line in lines:
            places = [float(point.split(",")[0]) for point in line.split()]
            steps = [after - before for before, after in itertools.pairwise(places)]
            assert len(steps) == 3
            assert max(steps) - min(steps) < 0.5, "factors have equal distances"
        assert len(re.findall(r'<line class="whisker', dom)) == 36
        assert "line points c0 d1" in dom
        assert "NaN" not in dom
        assert "logarithmic" in dom
        assert browser.said == []
        browser.picture(study.folder / "page.png")


POINTER = """
const chart = view.charts[0];
chart.point(arguments[0], true);
const dots = [...chart.cross.querySelectorAll("circle")].map(dot => Number(dot.getAttribute("cx")));
const values = chart.entries.map(entry => entry.value.textContent);
return [values, chart.cross.querySelector("text").textContent, dots.map(x => chart.xBack(x))];
"""


@pytest.mark.slow
@needs_chromium()
def test_the_pointer_shows_the_arms_that_it_names(config):
    """One run of hidden=64 is not done. At 0.04 the nearest of 0.01 and 0.1 by factors is 0.1, by distance 0.01."""
    study = kept(config, over=["optim.lr=0.001,0.01,0.1", "model.size.hidden=32,64"], seeds=1)
    commands = Pretended({arm.name: 3.0 + n for n, arm in enumerate(study.arms)})
    run_study(study, commands, lambda line: None, only=[1, 2, 3, 4, 5])
    page = write_study_report(study)
    with chromium() as browser:
        browser.open(page.as_uri(), "Picture")
        for at, value, losses in ((0.04, 0.1, ["7.0", "–"]), (0.02, 0.01, ["5.0", "6.0"])):
            shown, named, dots = browser.driver.execute_script(POINTER, at)
            assert [text if text == "–" else f"{float(text):.1f}" for text in shown] == losses
            assert named == f"optim.lr {value}"
            assert dots == pytest.approx([value] * (2 - losses.count("–")))


@pytest.mark.slow
@needs_chromium()
def test_a_browser_draws_a_study_with_one_value_done(config):
    study = kept(config, over=["optim.lr=1e-4,1e-2"], seeds=1)
    run_study(study, Pretended(), lambda line: None, only=[1])
    page = write_study_report(study)
    with chromium() as browser:
        browser.open(page.as_uri(), "Picture", "0.0001", "0.01")
        assert "NaN" not in browser.driver.execute_script("return document.documentElement.outerHTML")
        assert browser.said == []
