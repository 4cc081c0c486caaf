"""The names of the files in a run folder are spelled in one class, pretrain.run.RunFolder."""

import ast
from pathlib import Path

from pretrain.run import RunFolder

ROOT = Path(__file__).parents[2]
# Names that other folders have too: of a data set, a model, a study, or a key of the report.
AMBIGUOUS = {"config.yaml", "report.html", "tokenizer", "system", "profile", "slurm", "checkpoints", "exports"}
# It recognizes folders of all kinds for error messages, and is below the room `run`.
RECOGNIZES = ROOT / "data_prep/storage/folder_kinds.py"
CLASS = ROOT / "pretrain/run/folder.py"


def test_no_other_module_spells_the_file_names_of_a_run_folder() -> None:
    run = Path("RUN")
    paths = [value for value in vars(RunFolder(run)).values() if isinstance(value, Path) and value != run]
    names = {path.name for path in paths} - AMBIGUOUS
    assert {"journal.jsonl", "status.json", "STOP", "mlflow_run.json", "supervisor.json"} <= names
    packages = ("data_prep", "pretrain", "evaluation", "launchers", "maskwright")
    modules = {module for package in packages for module in (ROOT / package).rglob("*.py")}
    texts = [text for module in modules - {CLASS, RECOGNIZES} for text in strings(module)]
    assert [text for text in texts if Path(text).name in names] == []


def strings(module: Path) -> list[str]:
    nodes = ast.walk(ast.parse(module.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
