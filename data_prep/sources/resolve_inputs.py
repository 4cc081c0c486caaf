"""Find the inputs that `--input` names: files, folders, patterns, URLs of these, and data sets of the Hub."""

import difflib
import os
import re
import shlex
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path, PurePath

from data_prep.common.errors import UserError, working_directory
from data_prep.common.urls import Remote, file_name, is_url, open_remote, remote_errors, shown, without_query
from data_prep.sources.input_types import HUB, PAIR, SUFFIXES, SourceInput, kind_of
from data_prep.storage import OTHER_FILES, folder_kind, is_run

_NAMED = re.compile(r"([A-Za-z0-9_-]+|\*)=(.+)", re.DOTALL)
_KNOWN = "Inputs end in .jsonl, .txt, .fasta or .fa (also with .gz or .zst) or .parquet."
_LONGEST = 40  # characters of a path that a command repeats
_PANDAS = "python -c 'import pandas, sys; pandas.%s.to_parquet(sys.argv[2])' {path} {stem}.parquet"
_TSV = ("Convert it", _PANDAS % r'read_csv(sys.argv[1], sep="\t")')
_OWN = (  # names in folders that Maskwright wrote; a folder of text may well have one of two
    ("prep/place.json", "prep/tasks"),
    ("tokenizer.json", "tokenizer_config.json"),  # also of an export
)
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


def find_inputs(values: Iterable[str | Path], unread: dict[str, int] | None = None) -> list[SourceInput]:
    """Inputs for `--input` values. `unread` gets the files of folders that have no known type, with their bytes.

    Folders in a folder that Maskwright wrote are not read. `unread` gets them with a / at the end, and no bytes.

    A value is a file, a folder (all readable files in it), a glob pattern, a URL of these,
    `hub:OWNER/NAME?name=CONFIG&split=SPLIT&revision=REV` or `pair:SOURCE,TARGET`. `NAME=VALUE` also names the source;
    with `*=VALUE`, the folder directly below VALUE (below the part before a pattern) that holds a file does.

    Files of a folder or pattern are sorted. Links are followed. A file that is named twice is read once, under the
    first name. Raises UserError for a value without inputs, an unknown type, a name that is not UTF-8, a link to a
    missing file, and an unreachable location.
    """
    inputs: dict[str, SourceInput] = {}
    unread = {} if unread is None else unread
    for value in map(str, values):
        source, value = _split_name(value)
        for location in _locations(value, unread):
            kind = next((sign[:-1] for sign in (HUB, PAIR) if location.startswith(sign)), None) or kind_of(location)
            if kind is None:
                raise UserError(_unknown_type(location))
            try:
                location.encode()
            except UnicodeEncodeError:  # the plan and the manifest could not store it
                raise UserError(f"The name {location!r} is not in UTF-8; rename it.") from None
            identity = location if is_url(location) or kind in ("hub", "pair") else os.path.realpath(location)
            name = _folder_source(value, location) if source == "*" else source
            inputs.setdefault(identity, SourceInput(name, location, kind))
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


def _folder_source(value: str, location: str) -> str:
    """The first folder of a location below `value`, which names its source."""
    root = re.split(r"[*?[]", value)[0] if has_magic(value) and not os.path.exists(value) else f"{value}/"
    root = root[: root.rfind("/") + 1]
    root = root if is_url(value) else os.path.join(os.path.abspath(root), "")
    folder, below, _ = location.removeprefix(root).partition("/")
    if not below or not location.startswith(root) or not _NAMED.fullmatch(f"{folder}=x"):
        raise UserError(
            f"{shown(location)} is in no folder below {shown(value)} that can name its source with letters, digits, _ "
            "and -. Move or rename it, or name each source: --input NAME=FOLDER."
        )
    return folder


def _locations(value: str, unread: dict[str, int]) -> list[str]:
    if value.startswith(HUB):
        from data_prep.sources.hub import full_location

        return [full_location(value)]
    if value.startswith(PAIR):
        sides = [_locations(side, unread) for side in value.removeprefix(PAIR).split(",")]
        if len(sides) != 2 or any(len(side) != 1 or kind_of(side[0]) != "txt" for side in sides):
            raise UserError(f"{value} is not of the form pair:SOURCE,TARGET with two .txt files (also .gz or .zst).")
        return [PAIR + ",".join(location for (location,) in sides)]
    if is_url(value):
        remote = open_remote(value)
        if not remote.is_local or remote.tail:
            with remote_errors(value):
                return _remote(value, remote, unread)
        value = remote.path
    try:
        return _local(value, unread)
    except OSError as error:
        raise UserError(f"{error.filename or value} cannot be read: {error.strerror}.") from error


def _local(value: str, unread: dict[str, int]) -> list[str]:
    path = Path(os.path.abspath(value))
    if path.is_dir():
        locations = _files_below(path, unread)
    elif has_magic(value) and not path.exists():
        names = [os.path.abspath(name) for name in glob(value, recursive=True)]
        below = [_files_below(Path(name), unread) if os.path.isdir(name) else [name] for name in names]
        locations = sorted({file for files in below for file in files})
        for file in locations:
            unread.pop(file, None)
    else:
        locations = [str(path)] if path.is_file() else []
    if not locations:
        own = next((name for name in unread if name.endswith("/") and name.startswith(f"{path}/")), None)
        if own and folder_kind(path) == OTHER_FILES:
            raise UserError(f"No input file in {value} but in {own}, a folder of Maskwright.")
        raise UserError(_no_input(value, path))
    if dead := next((name for name in locations if not os.path.exists(name)), None):
        raise UserError(f"{dead} is a link to a file that does not exist. Correct the link, or remove it.")
    return [name for name in locations if os.path.isfile(name)]


def _files_below(path: Path, unread: dict[str, int]) -> list[str]:
    """The files in a folder to read, with those behind links to folders. Each folder is entered once.

    Raises OSError for a folder that cannot be read.
    """
    sizes: dict[str, int] = {}
    entered: set[str] = set()

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, onerror=refuse, followlinks=True):
        if os.path.realpath(folder) in entered:
            folders.clear()
            continue
        entered.add(os.path.realpath(folder))
        if folder != str(path) and _is_own(Path(folder)):
            unread[os.path.join(folder, "")] = 0
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in (os.path.join(folder, name) for name in names):
            sizes[os.path.relpath(file, path)] = os.path.getsize(file) if os.path.isfile(file) else 0
    return [str(path / name) for name in _readable_files(sizes, str(path), unread)]


def _is_own(path: Path) -> bool:
    """Whether Maskwright wrote this folder: a data set, a tokenizer, an export or a run."""
    run = (path / "config.yaml").is_file() and is_run(path)
    return run or any(all((path / name).exists() for name in names) for names in _OWN)


def _no_input(value: str, path: Path) -> str:
    """The message for a folder without inputs, a pattern without matches, or a path that does not exist."""
    if path.is_dir():
        others = sorted(str(file) for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not others:
            return f"No input file in the folder {value}: it is empty. Name files of text, or a folder with some."
        if (kind := folder_kind(path)) != OTHER_FILES:
            return f"No input file in {value}, which is {kind}. Name files of text, or a folder with some."
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


def _remote(url: str, remote: Remote, unread: dict[str, int]) -> list[str]:
    fs, path = remote.fs, remote.path

    def below(folder: str) -> list[str]:
        root = folder.rstrip("/") + "/" if folder.strip("/") else ""
        sizes = {name.removeprefix(root): info.get("size") or 0 for name, info in fs.find(root, detail=True).items()}
        return [root + name for name in _readable_files(sizes, remote.url(root), unread)]

    signs = "*[" if url.startswith(("http://", "https://")) else "*?["
    if any(sign in without_query(path) for sign in signs):
        matches = fs.glob(path, detail=True).items()
        names = sorted({file for name, info in matches for file in ([name] if info["type"] == "file" else below(name))})
    elif kind_of(url) and fs.info(path)["type"] != "directory":
        return [url]
    else:
        names = below(path)
    if not names:
        raise UserError(
            f"No input file at {shown(url)}; give the URL of a folder, a glob pattern or a file; inputs end in "
            f"{', '.join(SUFFIXES)}."
        )
    return [remote.url(name) for name in names]


def _readable_files(sizes: dict[str, int], folder: str, unread: dict[str, int]) -> list[str]:
    """The files of a folder (relative, with /) to read: sorted, without hidden files. The others go to `unread`.

    Configs and the store of MLflow, which Maskwright writes into the working folder, do not.
    """
    hidden = re.compile(r"(^|/)(\.|[^/]+\.yaml$|mlflow(\.db|-artifacts/))")
    visible = sorted(name for name in sizes if not hidden.search(name))
    unread |= {os.path.join(shown(folder), name): sizes[name] for name in visible if not name.endswith(SUFFIXES)}
    return [name for name in visible if name.endswith(SUFFIXES)]
