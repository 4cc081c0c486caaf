"""MLflow's pages in a real browser: the list of runs, the charts of a run, its checkpoints as models."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from pretrain.tracking import register
from tests.support import runs, text_data
from tests.support.browser import SIZE, Browser, chromium, needs_chromium
from tests.support.mlflow_server import Server

pytestmark = [pytest.mark.slow, needs_chromium()]

# Messages of MLflow's pages on any server without users.
NOT_OURS = ("users/current - Failed to load resource: the server responded with a status of 404", "ResizeObserver loop")


CARD = "A model pretrained with Maskwright"


def printed_page(said: str, server: str) -> str:
    """The page that training printed, on the server of the test."""
    (line,) = [line for line in said.splitlines() if line.startswith("MLflow: ")]
    return line.rpartition(" ")[2].replace("http://127.0.0.1:5000", server)


def visit(browser: Browser, uri: str, experiment: str, name: str, see: Callable[[str], None]) -> None:
    """Open the pages of a run called `name`, and hand the title of each to `see` once it shows what it must."""
    client = MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    (run,) = client.search_runs([number])
    models = {model.name: model for model in client.search_logged_models([number])}
    newest = max(models)
    (loss,) = [metric.value for metric in models[newest].metrics if metric.key == "eval/loss"]
    place, training = f"{uri}/#/experiments/{number}", "workflowType=machine_learning"
    browser.open(f"{place}/runs?{training}", name, "1 matching run", f"+{len(models) - 1}")
    browser.click('button[data-component-id="mlflow.assistant.chat_panel.close"]')
    see("runs")
    browser.resize(2100, 540)
    browser.open(f"{place}/models?{training}", *models, "Ready", "eval/loss", f"{loss:.3f}"[:4])
    see("models")
    browser.resize(*SIZE)
    browser.open(
        f"{place}/models/{models[newest].model_id}?{training}", newest, "eval/loss", str(loss)[:10], "Ready", CARD
    )
    see("model")
    browser.open(f"{place}/runs/{run.info.run_id}/model-metrics?{training}", "Add chart")
    browser.write('input[placeholder="Search metric charts"]', "loss")
    browser.wait_for(f"{name} (train/loss)", f"{name} (eval/loss)")
    see("charts")


def test_the_pages_show_the_run_its_charts_and_its_models(tmp_path: Path) -> None:
    data = text_data.text_data(tmp_path)
    run = tmp_path / "harbour"
    steps = {"train__steps": 300, "checkpoint__every_steps": 100, "checkpoint__keep": 3, "eval__every_steps": 20}
    values = runs.tiny_config(data, run, **steps)
    values["track"]["models"] = "all"
    result = runs.maskwright("train", runs.write_config(tmp_path / "config.yaml", values))
    assert result.returncode == 0, result.stdout + result.stderr
    register(run, "harbour-bert", "best", alias="champion", uri=values["track"]["uri"])
    server = Server(tmp_path, store=values["track"]["uri"])
    seen = []
    try:
        with chromium() as browser:

            def see(title: str) -> None:
                browser.picture(tmp_path / f"{title}.png")
                seen.append(title)

            browser.open(
                printed_page(result.stderr, server.uri), "harbour", "train/loss", "Registered models", "optimizer"
            )
            assert "workflowType=machine_learning" in browser.driver.current_url
            assert "Model registry" in browser.text  # the menu of MLflow's pages for training
            assert "Prompts" not in browser.text  # the title of its pages for agents
            visit(browser, server.uri, "maskwright", "harbour", see)
            browser.open(f"{server.uri}/#/models/harbour-bert", "Version 1", "champion", "held-out loss")
    finally:
        server.stop()
    assert seen == ["runs", "models", "model", "charts"]
    assert all((tmp_path / f"{title}.png").stat().st_size > 20_000 for title in seen)
    assert [line for line in browser.said if not any(known in line for known in NOT_OURS)] == []


if __name__ == "__main__":  # python -m tests.system.test_mlflow_ui URI EXPERIMENT RUN FOLDER: pictures for docs/
    with chromium() as window:
        visit(window, *sys.argv[1:4], lambda title: window.picture(Path(sys.argv[4]) / f"mlflow-{title}.png"))
