"""The pages that users look at, in a browser: wide, on a phone, and dark. Pictures go to MASKWRIGHT_PICTURES if set."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from evaluation.study import write_study_report
from pretrain.tracking import RunRecord, Tracker
from tests.support import runs
from tests.support.browser import Browser, chromium, needs_chromium
from tests.support.forked import ROOT
from tests.support.mlflow_server import Server
from tests.support.report_runs import eventful, prediction_lines, write_run
from tests.support.study_runs import Pretended, kept, run, study_config, study_data

pytestmark = [pytest.mark.slow, needs_chromium()]
SIZES = {"wide": (1400, "light"), "phone": (400, "light"), "dark": (1400, "dark")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Addresses of pages, and a text that each shows."""
    folder = tmp_path_factory.mktemp("pages")
    report = write_run(folder / "run", eventful(), unigram_loss=7.25)
    (report / "predictions.jsonl").write_bytes(b"".join(prediction_lines("k", [10, 20, 30])))
    runs.succeed("report", report)
    study = kept(study_config(folder, study_data(folder / "data")))
    run(study, Pretended())
    site = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder / "site")]
    subprocess.run(site, cwd=ROOT, check=True)
    return {
        "report": ((report / "report.html").as_uri(), "below the 7.2500 of token frequencies alone"),
        "study": (write_study_report(study).as_uri(), "How to read it"),
        "documentation": ((folder / "site/index.html").as_uri(), "Why use it"),
        "keys": ((folder / "site/configuration/index.html").as_uri(), "schedule.warmup_steps"),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def picture(browser: Browser, name: str, size: str) -> None:
    if folder := os.environ.get("MASKWRIGHT_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.picture(Path(folder) / f"{name}-{size}.png")


def emulate(browser: Browser, size: str, height: int = 1000) -> int:
    """Set the size of the window and the colours; returns the width."""
    width, colours = SIZES[size]
    window = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    return width


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["report", "study", "documentation", "keys"])
def test_a_page_fits_its_window(pages, browser, name, size):
    width, (address, text) = emulate(browser, size), pages[name]
    browser.open(address, text)
    picture(browser, name, size)
    assert browser.driver.execute_script("return document.documentElement.scrollWidth") <= width
    ink = "return getComputedStyle(document.querySelector('p')).color.match(/\\d+/g).slice(0, 3).map(Number)"
    assert (sum(browser.driver.execute_script(ink)) > 400) == (size == "dark"), "dark letters or bright ones"


BROKEN_WORDS = """
const broken = [];
for (const cell of document.querySelectorAll(".config td")) for (const node of cell.childNodes)
  for (const word of node.textContent.matchAll(/[^\\s]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (word[0].length < 35 && range.getClientRects().length > 1) broken.push(word[0]);
  }
return [document.querySelectorAll(".config td").length, document.documentElement.scrollWidth, broken];
"""


def test_a_phone_breaks_no_word_of_the_config(pages, browser):
    emulate(browser, "phone")
    browser.open(pages["report"][0], "settings differ")
    browser.driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    cells, width, broken = browser.driver.execute_script(BROKEN_WORDS)
    assert cells > 100
    assert width <= 400
    assert broken == []


def test_mlflow_shows_the_charts_of_learning_first(tmp_path, browser):
    emulate(browser, "wide", height=2000)  # charts below the window are not drawn
    folder = write_run(tmp_path / "run", eventful())
    server = Server(tmp_path)
    try:
        description = "Pretraining of a small model"
        record = RunRecord(server.uri, "demo", "first", {"lr": "1"}, {"steps": "30"}, description=description)
        Tracker(folder, record, seconds_between_sends=0.1).close(60, "FINISHED")
        (experiment,) = MlflowClient(server.uri).search_experiments(filter_string="name = 'demo'")
        (tracked,) = MlflowClient(server.uri).search_runs([experiment.experiment_id])
        page = f"{server.uri}/#/experiments/{experiment.experiment_id}/runs/{tracked.info.run_id}"
        browser.open(f"{page}?workflowType=machine_learning", description, "steps")
        picture(browser, "mlflow-run", "wide")
        browser.open(f"{page}/model-metrics?workflowType=machine_learning", "eval\n", "learning_rate")
        picture(browser, "mlflow-charts", "wide")
        assert browser.text.index("eval\n") < browser.text.index("train\n")
        assert not re.search("checkpoint|skipped|spike|rollback", browser.text)
    finally:
        server.stop()
