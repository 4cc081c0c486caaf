"""Exported models in the tools of docs/compatibility.md, and the same checks with spoiled exports."""

import re
from pathlib import Path

import pytest

from tests.conformance.exports import MODELS, SPOILED, Reference, spoil, train_models
from tests.conformance.table import TOOLS, Tool, name_of


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    return train_models(tmp_path_factory.mktemp("models"))


def known(tool: Tool) -> list[pytest.MarkDecorator]:
    if tool.failure is None:
        return []
    return [pytest.mark.xfail(raises=tool.failure.error, strict=True, reason=tool.failure.reason)]


CELLS = [
    pytest.param(tool, model, marks=known(tool), id=f"{name_of(tool)}-{model}") for tool in TOOLS for model in MODELS
]


@pytest.mark.parametrize("tool,model", CELLS)
def test_an_export_works(tool: Tool, model: str, references: dict[str, Reference], tmp_path: Path) -> None:
    try:
        tool.check(references[model].folder, references[model], tmp_path)
    except Exception as error:
        if tool.failure and not re.search(tool.failure.message, str(error)):
            pytest.fail(f"{tool.name} fails in another way than known: {error!r}")
        raise


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if not tool.failure], ids=name_of)
def test_a_check_notices_a_spoiled_export(tool: Tool, references: dict[str, Reference], tmp_path: Path) -> None:
    good = references["RoBERTa"]
    spoiled = spoil(good.folder, tool.spoiled, tmp_path / "spoiled")
    (tmp_path / "work").mkdir()
    with pytest.raises(Exception, match=SPOILED[tool.spoiled][1]):
        tool.check(spoiled, good, tmp_path / "work")


def test_each_fault_is_noticed_by_a_check() -> None:
    assert {tool.spoiled for tool in TOOLS if not tool.failure} == set(SPOILED)
