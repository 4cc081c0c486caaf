"""The page itself: one file that needs nothing else, and runs no script but its own."""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from data_prep.errors import cannot_write
from data_prep.files import atomic_writer
from pretrain.reporting.page_data import collect

SCRIPTS = ("page.js", "chart.js", "predictions.js", "main.js")


def write_report(run: Path, out: Path) -> None:
    """Write the page of a run.

    Raises:
        UserError: if `run` is not a run folder, or `out` cannot be written.
    """
    text = page(collect(run, out))
    try:
        with atomic_writer(out) as file:
            file.write(text.encode())
    except OSError as error:
        raise cannot_write(out, error) from None


def page(report: dict[str, Any], scripts: Sequence[str] = SCRIPTS) -> str:
    """The HTML of what `collect` found, or of something else for which there are `scripts`, templates' names.

    Nothing of a run can become markup or script: its values stand in a JSON element, without any "<", and the page's
    own script puts them in as text. The policy lets no other script run, and nothing be fetched.
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
    """JSON that may stand inside a <script> element: its "<", ">" and "&" are written as escapes."""
    text = orjson.dumps(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _template(name: str) -> str:
    return (files("pretrain.reporting") / "templates" / name).read_text(encoding="utf-8")
