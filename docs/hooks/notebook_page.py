"""mkdocs hook: the page of docs/notebook.ipynb, with the outputs that are stored in it."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOK = Path(__file__).parents[1] / "notebook.ipynb"
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the notebook by its page. The notebook stays, for download."""
    files.append(File.generated(config, "notebook.md", content=page(json.loads(NOTEBOOK.read_text(encoding="utf-8")))))
    return files


def page(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: text, code, and what the code shows."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        if text := "".join(map(_text, cell["outputs"])).strip("\n"):
            parts.append(f"```text\n{text}\n```")
        pictures = [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
        parts += [
            f"![The picture that the cell draws](data:image/png;base64,{''.join(each).strip()})" for each in pictures
        ]
    head, *rest = parts
    return "\n\n".join([head, "Download this page as a [notebook](notebook.ipynb).", *rest]) + "\n"


def _text(output: dict[str, Any]) -> str:
    """The text of an output of a cell, without colours; of a picture none."""
    data = output.get("data", {})
    text = "".join(output.get("text") or ("" if "image/png" in data else data.get("text/plain", "")))
    return _COLOURS.sub("", text if "text" in output else f"{text}\n")
