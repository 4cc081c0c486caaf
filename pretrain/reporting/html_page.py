"""Write the HTML page of a run: one self-contained file that runs only its own script."""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from data_prep.common.errors import cannot_write
from data_prep.common.files import write_file

SCRIPTS = ("page.js", "chart.js", "predictions.js", "main.js")


def write_page(report: dict[str, Any], out: Path, scripts: Sequence[str] = SCRIPTS) -> None:
    """Write the page of a report to `out`, with the arguments of `page`.

    Raises UserError if `out` cannot be written.
    """
    try:
        write_file(out, page(report, scripts).encode())
    except OSError as error:
        raise cannot_write(out, error) from None


def page(report: dict[str, Any], scripts: Sequence[str] = SCRIPTS) -> str:
    """The HTML of a report.

    Values of a run cannot become markup or script: they are in a JSON element without "<", and the page's script
    inserts them as text. The content security policy forbids other scripts and all requests.

    Args:
        report: the values that `collect` returns, or other values that `scripts` can show.
        scripts: names of templates.
    """
    script = "".join(map(_template, scripts))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'",
        "title": html.escape(f"{report['name']} · Maskwright"),
        "style": _template("report.css"),
        "script": script,
        "data": embedded(report),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _template("report.html"))


def embedded(value: Any) -> str:
    """JSON for a <script> element: "<", ">" and "&" are escaped."""
    text = orjson.dumps(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _template(name: str) -> str:
    return (files("pretrain.reporting") / "templates" / name).read_text(encoding="utf-8")
