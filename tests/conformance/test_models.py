"""Exported models in the tools of docs/compatibility.md, and the same checks with spoiled exports."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.exports import MODELS, SPOILED, Reference, spoil, train_models
from tests.conformance.table import TOOLS, Tool, name_of
from tests.support.forked import ROOT
from tests.support.text_data import OBJECTS, SUBJECTS, VERBS


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    return train_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tool", TOOLS, ids=name_of)
def test_an_export_works(tool: Tool, model: str, references: dict[str, Reference], tmp_path: Path) -> None:
    tool.check(references[model].folder, references[model], tmp_path)


@pytest.mark.parametrize("tool", TOOLS, ids=name_of)
def test_a_check_notices_a_spoiled_export(tool: Tool, references: dict[str, Reference], tmp_path: Path) -> None:
    good = references["RoBERTa"]
    spoiled = spoil(good.folder, tool.spoiled, tmp_path / "spoiled")
    (tmp_path / "work").mkdir()
    with pytest.raises(Exception, match=SPOILED[tool.spoiled][1]):
        tool.check(spoiled, good, tmp_path / "work")


def test_the_script_of_the_docs_trains_embeddings(references: dict[str, Reference], tmp_path: Path) -> None:
    """Of each pair, the second text has the same words in another order. Held-out pairs are found better afterwards."""
    page = (ROOT / "docs/finetuning.md").read_text(encoding="utf-8")
    (script,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def main" in block)
    faster = script.replace("learning_rate=2e-4", "learning_rate=1e-2")  # the model is tiny
    assert faster != script
    (tmp_path / "embed.py").write_text(faster, encoding="utf-8")
    pairs = [f"{who} {did} {what}.\t{what}, {did}, {who}" for who in SUBJECTS for did in VERBS for what in OBJECTS]
    random.Random(0).shuffle(pairs)
    for name, lines in {"train": pairs[:200], "valid": pairs[200:]}.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "embed.py", references["BERT"].folder, "train.tsv", "valid.tsv", "out"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ((before, after),) = re.findall(r"NDCG@10 on valid.tsv: (\S+) before, (\S+) after", done.stdout)
    assert float(after) > float(before) + 0.3
    assert (tmp_path / "out/modules.json").exists()
