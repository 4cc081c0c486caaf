"""Checkpoints as MLflow models: logged by a run and by a command, each once, and registered."""

from collections import Counter
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from safetensors.torch import load_file

from data_prep.common.errors import UserError
from evaluation.likelihood import send_evaluation
from pretrain.export import export_run
from pretrain.run import JournalReader
from pretrain.tracking import RunRecord, Target, log_models, logged_models, register, sync
from pretrain.tracking.logged_models import loss_of
from pretrain.tracking.mlflow_runs import MlflowRun
from tests.support import runs, text_data
from tests.support.mlflow_server import Server

pytestmark = pytest.mark.slow

SETTINGS = {"train__steps": 12, "checkpoint__every_steps": 4, "checkpoint__keep": 3, "eval__every_steps": 4}
NAMES = [f"step-{step:08d}{kind}" for step in (4, 8, 12) for kind in ("", "-ema")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that logged all its checkpoints."""
    data = text_data.text_data(tmp_path_factory.mktemp("data"))
    run = tmp_path_factory.mktemp("runs") / "run"
    result = runs.succeed("train", runs.config_file(data, run, track__models="all", optim__ema=0.5, **SETTINGS))
    assert "warning: MLflow" not in result.stderr, (run / "models.log").read_text()
    return run


@pytest.fixture(autouse=True)
def _own_store(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that a user names; the folder's own word would not be enough."""
    record = RunRecord.load(run)
    assert record is not None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", record.uri)


@pytest.fixture
def on_server(run: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> MlflowRun:
    """The same run on a server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    sync(run)
    return MlflowRun.of_folder(run)


def points(tracked: MlflowRun, name: str) -> list[tuple[int, float]]:
    return sorted((one.step, one.value) for one in tracked.client.get_metric_history(tracked.id, name))


def test_a_run_logs_each_checkpoint_with_its_own_evaluation(run: Path) -> None:
    tracked = MlflowRun.of_folder(run)
    found = {model.name: model for model in tracked.logged_models()}
    assert sorted(found) == sorted(NAMES)
    measured = {entry.step: entry.metrics for entry in JournalReader(run / "journal.jsonl").entries()}
    for name, model in found.items():
        metrics = measured[int(model.tags["step"])]
        assert str(model.status) == "READY"
        assert loss_of(model) == metrics["eval/ema_loss" if name.endswith("-ema") else "eval/loss"]
        assert {metric.dataset_name for metric in model.metrics} == {"data/valid"}
    outputs = tracked.client.get_run(tracked.id).outputs.model_outputs
    assert Counter(output.step for output in outputs) == {4: 2, 8: 2, 12: 2}
    assert {output.model_id for output in outputs} == {model.model_id for model in found.values()}
    for name in ("eval/loss", "eval/ema_loss"):  # linking a value has added no point to the curve
        assert points(tracked, name) == [(step, measured[step][name]) for step in (4, 8, 12)]
    assert log_models(run, "all") == []
    assert not [path for path in (run / "exports").iterdir() if path.name != ".lock"]


def test_what_is_logged_is_the_export(run: Path, tmp_path: Path) -> None:
    exported = export_run(run, 8, tmp_path / "export", averaged=True)
    model = next(model for model in MlflowRun.of_folder(run).logged_models() if model.name == "step-00000008-ema")
    place = Path(model.artifact_location.removeprefix("file://"))
    for path in exported.iterdir():
        assert (place / "model" / path.name).read_bytes() == path.read_bytes(), path.name
    for path in (place / "components/tokenizer").iterdir():
        assert path.read_bytes() == (exported / path.name).read_bytes(), path.name
    assert "[MASK]" in (place / "input_example.json").read_text()
    assert load_file(place / "model/model.safetensors")
    assert not {path.suffix for path in place.rglob("*")} & {".pkl", ".bin", ".pt"}
    said = "".join(path.read_text() for path in place.iterdir() if path.is_file())
    assert "EMA" in (place / "model_card.md").read_text()
    assert str(run) not in said
    required = [line.partition("==")[0] for line in (place / "requirements.txt").read_text().split()]
    assert required == ["mlflow", "torch", "transformers"]


def test_an_evaluation_is_attached_to_the_logged_model_and_below_the_training_run(run: Path) -> None:
    tracked = MlflowRun.of_folder(run)
    target = Target.of_run(run)
    found = {"settings": {}, "models": {str(run / "exports" / "step-00000008"): {"pairs": {"accuracy": 0.75}}}}
    export_run(run, 8, None)
    send_evaluation(found, target)
    models = {model.name: {one.key: one.value for one in model.metrics or []} for model in tracked.logged_models()}
    assert [name for name, metrics in models.items() if metrics.get("pairs/accuracy") == 0.75] == ["step-00000008"]
    (evaluated,) = tracked.client.search_runs(
        [tracked.experiment_id], f"tags.`mlflow.parentRunId` = '{tracked.id}' and attributes.run_name LIKE 'evaluate%'"
    )
    assert evaluated.data.metrics == {"pairs/accuracy": 0.75}


def test_a_killed_pass_is_taken_up_and_the_best_model_is_registered(
    run: Path, on_server: MlflowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for killed in ("log_model_artifacts", "log_outputs", "finalize_logged_model"):
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, killed, _killed)
            with pytest.raises(UserError, match=r"logging the models of .* in MLflow failed: killed here"):
                log_models(run, "best")
    begun = on_server.logged_models()
    assert [(model.name, str(model.status)) for model in begun] == [("step-00000004", "PENDING")]
    assert "step-00000004" in log_models(run, "best")
    after = {model.name: model for model in on_server.logged_models()}
    assert after["step-00000004"].model_id == begun[0].model_id
    losses = [loss_of(model) for model in sorted(after.values(), key=lambda model: model.creation_timestamp)]
    assert losses == sorted(losses, reverse=True)
    assert len(on_server.client.get_run(on_server.id).outputs.model_outputs) == len(after)

    made = register(run, "tiny", "best", alias="champion")
    assert (made.version, made.loss) == ("1", min(losses))
    assert register(run, "tiny", "best", alias=None) == made
    assert register(run, "tiny", "8", alias=None).model.startswith("step-00000008")
    version = on_server.client.get_model_version_by_alias("tiny", "champion")
    assert version.tags["checkpoint"] == made.model
    assert "tiny" in on_server.client.get_logged_model(after[made.model].model_id).tags["mlflow.modelVersions"]


def _killed(*_: object, **__: object) -> None:
    raise ConnectionError("killed here")


def test_what_cannot_be_logged_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no checkpoint of step 5"):
        log_models(run, "all", step=5)
    with pytest.raises(UserError, match="--step newest is neither a step nor best or last"):
        register(run, "tiny", "newest", alias=None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    with pytest.raises(UserError, match=r"is not in MLflow at .* yet. Run: maskwright track sync"):
        log_models(run, "all")


def test_a_checkpoint_that_training_removes_meanwhile_is_passed_over(
    run: Path, on_server: MlflowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = run / "checkpoints/step-00000008"
    aside = removed.with_name("elsewhere")
    offered = logged_models.candidates

    def then_remove(*arguments: object, **keywords: object) -> list[logged_models.Candidate]:
        found = offered(*arguments, **keywords)  # type: ignore[arg-type]
        removed.rename(aside)
        return found

    for model in on_server.logged_models():
        on_server.client.delete_logged_model(model.model_id)
    monkeypatch.setattr(logged_models, "candidates", then_remove)
    try:
        assert log_models(run, "all") == [name for name in NAMES if "08" not in name]
    finally:
        aside.rename(removed)
    assert mlflow.active_run() is None
