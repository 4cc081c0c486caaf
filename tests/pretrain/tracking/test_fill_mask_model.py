"""Package of a logged model: the model that MLflow loads from it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mlflow.pyfunc
import mlflow.transformers
import pytest

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


def test_the_likeliest_token_for_each_mask(model: mlflow.pyfunc.PyFuncModel, package: Path) -> None:
    texts = ["where is [MASK]", "[MASK] is in york"]
    fill = mlflow.transformers.load_model(str(package))
    assert model.predict(texts) == [guesses[0]["token_str"] for guesses in fill(texts)]


def test_the_package_needs_nothing_of_maskwright_and_has_no_code(package: Path, tmp_path: Path) -> None:
    assert not {path.suffix for path in package.rglob("*")} & {".py", ".pkl", ".bin", ".pt"}
    code = (
        "import sys, mlflow.pyfunc; print(len(mlflow.pyfunc.load_model(sys.argv[1]).predict(['is [MASK]'])));"
        "assert not {'pretrain', 'launchers', 'data_prep'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_a_model_card_is_shown_without_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\ntags: [fill-mask]\n---\n# tiny\n\n" + "A model. " * 2000)
    text = card_text(tmp_path)
    assert text.startswith("# tiny")
    assert len(text) == 8000
