"""The notebook of the documentation runs from start to end.

`python -m tests.system.test_notebook` runs it and stores what its cells show.
"""

import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.support import runs
from tests.support.forked import ROOT

NOTEBOOK = ROOT / "docs/notebook.ipynb"
UNSTABLE = re.compile(r"^( *\d+\.\d s  .*|MLflow: .*|.*TqdmWarning.*|  from .autonotebook.*)\n", re.MULTILINE)
"""Lines that differ each time, or from machine to machine."""
FEW = {'steps": 160': 'steps": 16', 'steps": 40': 'steps": 4', 'steps": 20': 'steps": 2', 'steps": 80': 'steps": 8'}
"""In the place of the steps of the notebook, whose loss curve would take most of the test's time."""


def execute(folder: Path, few: bool = False) -> Any:
    """The notebook after its cells ran in `folder` on the CPU."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells if few else ():
        cell.source = re.sub("|".join(FEW), lambda match: FEW[match[0]], cell.source)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    environment = {name: value for name, value in runs.environment().items() if name != "PYTEST_CURRENT_TEST"}
    client.execute(env=environment | {"CUDA_VISIBLE_DEVICES": ""})
    return notebook


def shown(cell: Any, kind: str = "text/plain") -> str:
    """What a cell shows: what it prints, and its values."""
    return "".join(output.get("text") or output.get("data", {}).get(kind, "") for output in cell.get("outputs", ()))


def test_the_notebook_leads_from_text_to_a_filled_mask(tmp_path: Path) -> None:
    notebook = execute(tmp_path, few=True)
    cells = {cell.source.splitlines()[0]: cell for cell in notebook.cells if cell.cell_type == "code"}
    prepared, trained = cells['tokenizer = Path("data/tokenizer")'], cells["run = mw.train("]
    assert "659 documents" in shown(prepared)
    assert "split into tokens" in shown(next(cell for first, cell in cells.items() if "show_masks" in first))
    assert "Run('runs/notebook'): completed, step 16 of 16" in shown(trained)
    assert shown(trained).count("step 16/16 | loss") == 1, "a line of progress replaces the one before it"
    assert len(re.findall(r"^step .*eval loss", shown(trained), re.MULTILINE)) == 4
    assert "iframe" in shown(cells["run.report()"], "text/html")
    assert [line.split()[0] for line in shown(cells["import pandas"]).splitlines()][1:] == [
        *("loss", "perplexity", "masked_accuracy", "predictions")
    ]
    shows = [[bool(cell.get("outputs")) for cell in each.cells] for each in (nbformat.read(NOTEBOOK, 4), notebook)]
    assert shows[0] == shows[1], "store what the cells show"


def stored_outputs(cell: Any) -> Iterator[Any]:
    """The outputs of a cell that are worth storing: consecutive prints as one, no HTML, and nothing unstable."""
    for kind, group in itertools.groupby(cell.outputs, key=lambda output: output.output_type):
        outputs = list(group)
        if kind == "stream":
            text = UNSTABLE.sub("", "".join(output.text for output in outputs))
            outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)] if text else []
        for output in outputs:
            output.get("data", {}).pop("text/html", None)  # a page, and tables that are also text
            if kind == "stream" or any(output.data.values()):
                yield output


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        result = execute(Path(temporary))
    for number, cell in enumerate(result.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if "outputs" in cell:
            cell.outputs = list(stored_outputs(cell))
    nbformat.write(result, NOTEBOOK)
