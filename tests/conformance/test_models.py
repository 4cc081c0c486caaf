"""Exported models in the tools of docs/compatibility.md, and the same checks with spoiled exports."""

from pathlib import Path

import pytest

from tests.conformance.exports import MODELS, SPOILED, Reference, spoil, train_models
from tests.conformance.table import TOOLS, Tool, name_of


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


def test_each_fault_is_noticed_by_a_check() -> None:
    assert {tool.spoiled for tool in TOOLS} == set(SPOILED)
