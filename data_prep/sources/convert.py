"""How to turn files that are no input into inputs: a command to paste, or what to do. Pure functions of the name."""

import os
import shlex
from pathlib import PurePath

from data_prep.sources.input_types import COMPRESSIONS, SUFFIXES

_TABLES = {
    ".csv": "pandas.read_csv(sys.argv[1])",
    ".tsv": 'pandas.read_csv(sys.argv[1], sep="\\t")',
    ".tab": 'pandas.read_csv(sys.argv[1], sep="\\t")',
    ".json": "pandas.read_json(sys.argv[1])",
}
_PANDOC = (".html", ".htm", ".xhtml", ".docx", ".odt", ".epub", ".rtf", ".tex")
_PLAIN = (".md", ".rst", ".text", ".log", "")
_OTHER_NAMES = {".ndjson": ".jsonl", ".jsonlines": ".jsonl", ".jl": ".jsonl", ".zstd": ".zst", ".gzip": ".gz"}
_ARCHIVES = {".tar": "tar -xf", ".tgz": "tar -xf", ".zip": "unzip"}
_LONGEST = 40  # characters of a path that a command repeats
KNOWN = "Inputs end in .jsonl or .txt (also with .gz or .zst), .parquet or .arrow."


def how_to_convert(path: str) -> str:
    """Advice for a file whose type is not supported: one or two sentences with a command."""
    if path.startswith(os.getcwd() + os.sep):
        path = os.path.relpath(path)
    where = "" if len(path) <= _LONGEST else "in its folder: "
    path = path if not where else PurePath(path).name
    said, command = _conversion(path)
    return f"{said}: {where}{command}" if command else said


def _conversion(path: str) -> tuple[str, str]:
    """(what to do, the command for it or nothing)."""
    stem, suffix = os.path.splitext(path)
    suffix, inner = suffix.lower(), os.path.splitext(stem)[1].lower()
    if path.lower().endswith(SUFFIXES):
        return "Rename it", _run("mv", path, path[: -len(suffix)] + suffix)
    if suffix in COMPRESSIONS and inner in _TABLES:
        stem, suffix = os.path.splitext(stem)[0], inner
    if suffix in _TABLES:
        lines = "If each line is an object, rename it to .jsonl. Else convert it" if suffix == ".json" else "Convert it"
        code = f"import pandas, sys; {_TABLES[suffix]}.to_parquet(sys.argv[2])"
        return lines, _run("python", "-c", code, path, f"{stem}.parquet")
    if suffix in _PANDOC:
        return "Convert it with pandoc", _run("pandoc", path, "-t", "plain", "--wrap=none", "-o", f"{stem}.txt")
    if suffix == ".pdf":
        return "Convert it", f"pip install pymupdf && {_run('pymupdf', 'gettext', '-mode', 'simple', path)}"
    if suffix in (".xz", ".bz2"):
        tool = "xz" if suffix == ".xz" else "bzip2"
        return "Compress it with gzip", f"{_run(tool, '-dc', path)} | gzip > {shlex.quote(f'{stem}.gz')}"
    if suffix in _ARCHIVES or (suffix in COMPRESSIONS and inner == ".tar"):
        unpack = _ARCHIVES.get(suffix, "tar -xf")
        return "Unpack it and name the folder", f"{unpack} {shlex.quote(path)}"
    if suffix in _OTHER_NAMES:
        return "Rename it", _run("mv", path, stem + _OTHER_NAMES[suffix])
    if suffix in _PLAIN:
        return "If it is plain text, rename it", _run("mv", path, f"{stem}.txt")
    return f"{KNOWN} Convert it to one of them", ""


def _run(*words: str) -> str:
    return " ".join(map(shlex.quote, words))
