"""The package of a logged model: what MLflow loads from it, and what it says to bad requests."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlflow.pyfunc
import pytest
from mlflow.exceptions import MlflowException

from pretrain.tracking.model_package import card_text, write_package
from tests.support.finetuning import tiny_model


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exported = tiny_model(tmp_path_factory.mktemp("exported"))
    (exported / "README.md").write_text("---\ntags: [fill-mask]\n---\n# tiny\n\nA model.\n")
    out = tmp_path_factory.mktemp("package") / "tiny"
    model = SimpleNamespace(artifact_location="file:///artifacts", model_id="m-1")
    write_package(exported, out, model, "0" * 32, "tiny/step-1")  # type: ignore[arg-type]
    return out


@pytest.fixture(scope="module")
def model(package: Path) -> mlflow.pyfunc.PyFuncModel:
    return mlflow.pyfunc.load_model(str(package))


def test_tokens_come_with_scores_and_as_many_as_asked_for(model: mlflow.pyfunc.PyFuncModel) -> None:
    texts = ["where is [MASK]", "[MASK] is in york"]
    found = model.predict(texts, params={"top_k": 3})
    assert [len(guesses) for guesses in found] == [3, 3]
    for guesses in found:
        scores = [guess["score"] for guess in guesses]
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) < 1
        assert all(set(guess) == {"token_str", "score"} for guess in guesses)
    assert [len(guesses) for guesses in model.predict(texts)] == [5, 5]
    assert [guesses[:3] for guesses in model.predict(texts)] == found
    assert "top_k" in str(model.metadata.signature.params)


@pytest.mark.parametrize(
    ("texts", "params", "said"),
    [
        (["where is york"], {}, "Text 1 has no [MASK]; each text needs exactly one."),
        (["is [MASK]", "[MASK] [MASK]"], {}, "Text 2 has 2 [MASK]; each text needs exactly one."),
        (["[MASK]" + " is" * 40], {}, "Text 1 has 43 tokens; the model reads 32."),
        (["is [MASK]"], {"top_k": 0}, "top_k is 0; it must be from 1 to"),
        (["is [MASK]"], {"top_k": 10**6}, "top_k is 1000000; it must be from 1 to"),
    ],
)
def test_a_bad_request_gets_status_400_and_one_line(model, texts: list[str], params: dict[str, int], said: str) -> None:
    with pytest.raises(MlflowException) as refused:
        model.predict(texts, params=params)
    assert refused.value.get_http_status_code() == 400
    assert said in str(refused.value)
    assert len(str(refused.value)) < 150


def test_the_package_needs_nothing_of_maskwright_and_pickles_nothing(package: Path, tmp_path: Path) -> None:
    assert [path.name for path in package.rglob("*.py")] == ["maskwright_fill_mask.py"]
    assert not {path.suffix for path in package.rglob("*")} & {".pkl", ".bin", ".pt"}
    code = (
        "import sys, mlflow.pyfunc; print(mlflow.pyfunc.load_model(sys.argv[1]).predict(['is [MASK]']));"
        "assert not {'pretrain', 'launchers', 'data_prep'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "token_str" in done.stdout


def test_a_model_card_is_shown_without_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\ntags: [fill-mask]\n---\n# tiny\n\n" + "A model. " * 2000)
    text = card_text(tmp_path)
    assert text.startswith("# tiny")
    assert len(text) == 8000
