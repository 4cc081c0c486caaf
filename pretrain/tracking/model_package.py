"""An exported Hugging Face folder as an MLflow model: flavors, signature, input example, requirements, model card."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

MLFLOW_NOTE = "mlflow.note.content"
"""The tag that MLflow's pages show as a description, in Markdown."""

LONGEST_NOTE = 8000  # MLflow's limit
_PACKAGES = ("mlflow", "torch", "transformers")


def write_package(exported: Path, out: Path, model: "LoggedModel", run_id: str, title: str) -> None:
    """Write what MLflow stores of a logged model; its folder `model` has all of `exported`.

    `mlflow.transformers.load_model` gives a fill-mask pipeline, and `mlflow.pyfunc.load_model` a model that returns
    the likeliest token for the mask of each text. Weights are the safetensors of `exported`; nothing is pickled.

    Args:
        out: folder to write, which must be new.
        model: the logged model that it will belong to.
        title: what the model is called inside the package.
    """
    import mlflow.transformers
    from huggingface_hub import ModelCard
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, Schema
    from transformers import pipeline

    fill: Any = pipeline("fill-mask", model=str(exported), device="cpu", trust_remote_code=False)
    package = Model(artifact_path=model.artifact_location, model_uuid=model.model_id, run_id=run_id)
    package.model_id = model.model_id
    mlflow.transformers.save_model(
        transformers_model=fill,
        path=str(out),
        model_card=ModelCard.load(exported / "README.md"),
        mlflow_model=package,
        signature=ModelSignature(inputs=Schema([ColSpec("string")]), outputs=Schema([ColSpec("string")])),
        input_example=[f"The ship sailed across the {fill.tokenizer.mask_token}."],
        pip_requirements=[_pinned(name) for name in _PACKAGES],
    )
    shutil.copytree(exported, out / "model", dirs_exist_ok=True)  # byte for byte, with tokenizer and model card
    for file in (out / "components" / "tokenizer").iterdir():  # with the names that transformers 4 knows
        shutil.copy(exported / file.name, file)
    (out / "LICENSE.txt").unlink(missing_ok=True)  # MLflow's guess of a licence, with a local path as a web address
    package.flavors["transformers"]["source_model_name"] = title  # or that path again
    package.save(str(out / "MLmodel"))


def card_text(exported: Path) -> str:
    """The model card of an export without its metadata, as short as a tag must be."""
    from huggingface_hub import ModelCard

    return str(ModelCard.load(exported / "README.md").text).strip()[:LONGEST_NOTE]


def _pinned(name: str) -> str:
    """This version of a package, without the local part (`+cu130`) that no index has."""
    from importlib.metadata import version

    return f"{name}=={version(name).partition('+')[0]}"
