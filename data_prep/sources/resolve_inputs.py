"""Find the inputs that `--input` names: files, folders, patterns, URLs of these, and data sets of the Hub."""

import difflib
import os
import re
import shlex
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path, PurePath

from data_prep.errors import UserError, working_directory
from data_prep.sources.input_types import HUB, PAIR, SUFFIXES, SourceInput, kind_of
from data_prep.urls import Remote, file_name, is_url, open_remote, remote_errors, shown, without_query

_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)
_KNOWN = "Inputs end in .jsonl, .txt, .fasta or .fa (also with .gz or .zst) or .parquet."
_LONGEST = 40  # characters of a path that a command repeats
_PANDAS = "python -c 'import pandas, sys; pandas.%s.to_parquet(sys.argv[2])' {path} {stem}.parquet"
_TSV = ("Convert it", _PANDAS % r'read_csv(sys.argv[1], sep="\t")')
_CONVERSIONS = {  # by the end of the name: advice and command
    **dict.fromkeys((".csv", ".csv.gz"), ("Convert it", _PANDAS % "read_csv(sys.argv[1])")),
    **dict.fromkeys((".tsv", ".tsv.gz", ".tab"), _TSV),
    ".json": ("If each line is an object, rename it to .jsonl. Else convert it", _PANDAS % "read_json(sys.argv[1])"),
    **dict.fromkeys(
        (".html", ".htm", ".xhtml", ".docx", ".odt", ".epub", ".rtf", ".tex"),
        ("Convert it with pandoc", "pandoc {path} -t plain --wrap=none -o {stem}.txt"),
    ),
    ".arrow": ("If save_to_disk wrote it, name its folder: --input hub:FOLDER", ""),
    ".pdf": ("Convert it", "pip install pymupdf && pymupdf gettext -mode simple {path}"),
    ".xz": ("Compress it with gzip", "xz -dc {path} | gzip > {stem}.gz"),
    ".bz2": ("Compress it with gzip", "bzip2 -dc {path} | gzip > {stem}.gz"),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz"), ("Unpack it and name the folder", "tar -xf {path}")),
    ".zip": ("Unpack it and name the folder", "unzip {path}"),
    **dict.fromkeys((".ndjson", ".jsonlines", ".jl"), ("Rename it", "mv {path} {stem}.jsonl")),
    **dict.fromkeys((".faa", ".fna", ".ffn"), ("Rename it", "mv {path} {stem}.fasta")),
    **{suffix.upper(): ("Rename it", f"mv {{path}} {{stem}}{suffix}") for suffix in SUFFIXES},
    **dict.fromkeys((".md", ".rst", ".text", ".log", ""), ("If it is plain text, rename it", "mv {path} {stem}.txt")),
}


def find_inputs(values: Iterable[str | Path]) -> list[SourceInput]:
    """Inputs for `--input` values.

    A value is a file, a folder (all readable files in it), a glob pattern, a URL of these,
    `hub:OWNER/NAME?name=CONFIG&split=SPLIT&revision=REV` or `pair:SOURCE,TARGET`. `NAME=VALUE` also names the source.

    Files of a folder or pattern are sorted. A file that is named twice is read once, under the first name. Raises
    UserError for a value without inputs, an unknown type, a name that is not UTF-8, and an unreachable location.
    """
    inputs: dict[str, SourceInput] = {}
    for value in map(str, values):
        source, value = _split_name(value)
        for location in _locations(value):
            kind = next((sign[:-1] for sign in (HUB, PAIR) if location.startswith(sign)), None) or kind_of(location)
            if kind is None:
                raise UserError(_unknown_type(location))
            try:
                location.encode()
            except UnicodeEncodeError:  # the plan and the manifest could not store it
                raise UserError(f"The name {location!r} is not in UTF-8; rename it.") from None
            identity = location if is_url(location) or kind in ("hub", "pair") else os.path.realpath(location)
            inputs.setdefault(identity, SourceInput(source, location, kind))
    return list(inputs.values())


def how_to_convert(path: str) -> str:
    """Advice for a file of an unsupported type, with a command to paste if there is one."""
    if path.startswith(os.getcwd() + os.sep):
        path = os.path.relpath(path)
    where = "" if len(path) <= _LONGEST else "in its folder: "
    path = PurePath(path).name if where else path
    outer, end = os.path.splitext(path)
    inner, middle = os.path.splitext(outer)
    for stem, suffix in ((inner, middle + end), (outer, end)):
        if entry := _CONVERSIONS.get(suffix) or _CONVERSIONS.get(suffix.lower()):
            advice, command = entry
            command = command.format(path=shlex.quote(path), stem=shlex.quote(stem))
            return f"{advice}: {where}{command}" if command else advice
    return f"{_KNOWN} Convert it to one of them"


def _split_name(value: str) -> tuple[str, str]:
    """Split `NAME=VALUE`, unless a file or pattern has the whole name, as folders like `year=2020` do."""
    match = _NAMED.fullmatch(value)
    if match is None or os.path.exists(value) or (has_magic(value) and glob(value, recursive=True)):
        return "", value
    return match[1], match[2]


def _locations(value: str) -> list[str]:
    if value.startswith(HUB):
        from data_prep.sources.hub import resolve

        return [resolve(value)]
    if value.startswith(PAIR):
        sides = [_locations(one) for one in value.removeprefix(PAIR).split(",")]
        if len(sides) != 2 or any(len(side) != 1 or kind_of(side[0]) != "txt" for side in sides):
            raise UserError(f"{value} is not of the form pair:SOURCE,TARGET with two .txt files (also .gz or .zst).")
        return [PAIR + ",".join(location for (location,) in sides)]
    if is_url(value):
        remote = open_remote(value)
        if not remote.is_local or remote.tail:
            with remote_errors(value):
                return _remote(value, remote)
        value = remote.path
    try:
        return _local(value)
    except OSError as error:
        raise UserError(f"{error.filename or value} cannot be read: {error.strerror}.") from error


def _local(value: str) -> list[str]:
    path = Path(os.path.abspath(value))
    if path.is_dir():
        files = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
        locations = [str(path / name) for name in _readable_files(files)]
    elif has_magic(value) and not path.exists():
        locations = sorted(os.path.abspath(name) for name in glob(value, recursive=True) if os.path.isfile(name))
    else:
        locations = [str(path)] if path.is_file() else []
    if not locations:
        raise UserError(_no_input(value, path))
    return locations


def _no_input(value: str, path: Path) -> str:
    """The message for a folder without inputs, a pattern without matches, or a path that does not exist."""
    if path.is_dir():
        others = sorted(str(file) for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not others:
            return f"No input file in the folder {value}: it is empty. Correct --input."
        return f"No input file in the folder {value}, but files of other types, such as {_unknown_type(others[0])}"
    missing = f"No input file at {value}{working_directory(value)}."
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    if likely := difflib.get_close_matches(path.name, names, n=1, cutoff=0.7):
        return f"{missing} Did you mean {os.path.join(os.path.dirname(value), likely[0])}?"
    return f"{missing} Name a file, a folder, a pattern in quotes or a URL."


def _unknown_type(location: str) -> str:
    name = shown(location)
    suffix = os.path.splitext(file_name(location))[1] or "a name without an ending"
    advice = _KNOWN if is_url(location) else how_to_convert(location)
    return f"{os.path.basename(name) or name}: {suffix} is not supported. {advice}"


def _remote(url: str, remote: Remote) -> list[str]:
    fs, path = remote.fs, remote.path
    signs = "*[" if url.startswith(("http://", "https://")) else "*?["
    if any(sign in without_query(path) for sign in signs):
        names = sorted(name for name, info in fs.glob(path, detail=True).items() if info["type"] == "file")
    elif kind_of(url) and fs.info(path)["type"] != "directory":
        return [url]
    else:
        root = path.rstrip("/") + "/" if path.strip("/") else ""
        names = [root + name for name in _readable_files(name.removeprefix(root) for name in fs.find(root))]
    if not names:
        raise UserError(
            f"No input file at {shown(url)}; give the URL of a folder, a glob pattern or a file; inputs end in "
            f"{', '.join(SUFFIXES)}."
        )
    return [remote.url(name) for name in names]


def _readable_files(names: Iterable[str]) -> list[str]:
    """The file names in a folder (relative, with /) to read: sorted, without hidden files."""
    hidden = re.compile(r"(^|/)\.")
    return sorted(name for name in names if name.endswith(SUFFIXES) and not hidden.search(name))
