"""The table of docs/compatibility.md: tools and their checks.

python -m tests.conformance.table    # print the table
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from data_prep.common.packages import installed_version
from tests.conformance import model_checks, shard_checks
from tests.conformance.exports import MODELS


class Tool(NamedTuple):
    name: str
    use: str
    package: str
    check: Callable[..., None]
    spoiled: str = ""
    """The fault of tests.conformance.exports.SPOILED that the check must notice."""


WEIGHTS, PAD, MASK = "weights exchanged", "no pad token", "wrong mask token"
TOOLS = (
    Tool("transformers", "`fill-mask` pipeline", "transformers", model_checks.fill_mask, MASK),
    Tool("transformers", "every `AutoModelFor...`: load, save", "transformers", model_checks.auto_classes, PAD),
    Tool("transformers", "`Trainer`: fine-tune, save, load", "transformers", model_checks.trainer, PAD),
    Tool("sentence-transformers", "encode, train, save, load", "sentence-transformers",
         model_checks.sentence_transformers, WEIGHTS),
    Tool("PEFT", "LoRA: train, save, load", "peft", model_checks.lora, WEIGHTS),
    Tool("torch.export", "any batch size and length", "torch", model_checks.torch_export, WEIGHTS),
    Tool("onnxruntime", "fp32, and int8 weights", "onnxruntime", model_checks.onnx, WEIGHTS),
    Tool("MLflow", "`mlflow models serve`", "mlflow", model_checks.mlflow_serve, MASK),
    Tool("minicons", "scores of sentences, with a [changed name](#minicons)", "minicons", model_checks.minicons,
         WEIGHTS),
)  # fmt: skip
SHARD_TOOLS = (
    Tool("webdataset", "`WebDataset(...).decode()`", "webdataset", shard_checks.webdataset),
    Tool("datasets", '`load_dataset("webdataset")`, also streamed', "datasets", shard_checks.load_dataset),
    Tool("torch", "`DataLoader` with two workers", "torch", shard_checks.data_loader),
)


def name_of(tool: Any) -> str:
    """The name of a tool's check, for a test."""
    return tool.check.__name__


def missing_packages() -> list[str]:
    """Packages of the table, and of the tests of trainers and copies of a journal, that are not installed."""
    packages = {tool.package for tool in TOOLS + SHARD_TOOLS} | {"accelerate", "lightning", "tensorboard", "wandb"}
    return sorted(package for package in packages if installed_version(package) is None)


def tables() -> str:
    """Both tables as Markdown."""
    return "\n".join([*_table(list(MODELS), TOOLS), "", *_table(["shards"], SHARD_TOOLS), ""])


def _table(columns: list[str], tools: tuple[Tool, ...]) -> list[str]:
    rows = [["tool", "use", *columns], ["---"] * (2 + len(columns))]
    rows += [[tool.name, tool.use, *["yes"] * len(columns)] for tool in tools]
    return [f"| {' | '.join(row)} |" for row in rows]


if __name__ == "__main__":
    print(tables(), end="")
