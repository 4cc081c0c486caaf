"""The files of a published model: the files of an export, with a longer model card.

The card gets figures, the training data and the config. Text of the folder may be of somebody else. In the card it runs
no HTML, loads no image from another server, and has no heading that could pass for one of the sections here.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard

from data_prep.common.errors import UserError, one_line
from data_prep.common.files import atomic_folder, write_file
from data_prep.common.reading import MAX_CONFIG_BYTES, read_text, require_own_files
from data_prep.common.urls import file_name, is_url, redact, require_trust, shown
from data_prep.format import Dataset
from data_prep.storage import is_run
from pretrain.config import Config
from pretrain.config_files import load_config, on_one_line
from pretrain.export.export_record import RECORD, ExportRecord
from pretrain.export.model_card import PLACE
from pretrain.run import RunFolder

_CARD = "README.md"
_KINDS = (".json", ".safetensors", ".txt", ".model", ".jinja")  # of a folder without a record of its files
_SOURCES = 20
_PRIVATE: Any = {"run": {"dir", "resume"}, "track": True, "cluster": True, "checkpoint": True}
_REMOTE_IMAGES = ("thumbnail", "widget")  # keys of the metadata
_HEADING = re.compile(r"^((?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(#{1,6})(?=[ \t]|$)", re.MULTILINE)
_UNDERLINE = re.compile(r"^(?=[ \t>]*(?:=+|-+)[ \t]*$)", re.MULTILINE)  # makes a heading of the line before


@dataclass(frozen=True)
class Revision:
    """A revision of a repository: its name and its files, each as a path or as its content."""

    name: str
    files: dict[str, Path | bytes]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in self.files.values())

    @property
    def card(self) -> str:
        """The model card."""
        content = self.files[_CARD]
        assert isinstance(content, bytes)
        return content.decode()

    def write(self, folder: Path) -> None:
        """Write the files into a new folder. Raises OSError."""
        with atomic_folder(folder) as temporary:
            for name, content in self.files.items():
                if isinstance(content, bytes):
                    write_file(temporary / name, content)
                else:
                    shutil.copyfile(content, temporary / name)


def revision_of(
    export: Path,
    name: str,
    repository: str,
    figures: Sequence[EvalResult],
    licence: str | None = None,
    data_licences: Sequence[tuple[str, str]] = (),
    trust_folder: bool = False,
) -> Revision:
    """The revision for an export. Its card describes the training if the export is in its run folder.

    Args:
        name: of the revision. repository: OWNER/NAME. figures, licence, data_licences, trust_folder: see
            published_card and training_sections.

    Raises UserError if a file of the export is a link or not as recorded, or the run's config cannot be read. OSError.
    """
    exports = export.absolute().parent
    run = exports.parent if exports.name == "exports" and is_run(exports.parent) else None
    if run and (links := [path for path in (export.parent, export) if path.is_symlink()]):
        raise UserError(f"{links[0]} is a symbolic link. Publish the folder that it leads to by its own name.")
    require_own_files(export)
    record = ExportRecord.read(export)
    if record and (changed := record.changed_files(export)):
        raise UserError(f"{export} is damaged: {changed[0]}. Export the model again, and publish that.")
    if run and record:
        sections = training_sections(RunFolder(run), record.step, data_licences, trust_folder)
    else:
        sections = f"## Training data\n\n{licence_table(data_licences)}" if data_licences else ""
    names = record.files if record else sorted(file.name for file in export.iterdir() if file.suffix in _KINDS)
    files: dict[str, Path | bytes] = {name: export / name for name in names}
    old = read_text(export / _CARD, MAX_CONFIG_BYTES) if (export / _CARD).is_file() else ""
    card = published_card(old, repository, figures, sections, licence).encode()
    files[_CARD] = card
    if record:
        record = replace(record, files=record.files | {_CARD: sha256(card).hexdigest()})
        files[RECORD] = json.dumps(asdict(record), indent=1).encode() + b"\n"
    return Revision(name, files)


def published_card(
    card: str, repository: str, figures: Sequence[EvalResult], sections: str = "", licence: str | None = None
) -> str:
    """The model card of a published model, as Markdown with metadata.

    Args:
        card: of the export.
        repository: OWNER/NAME.
        sections: see training_sections.
        licence: its id on the Hugging Face Hub.

    Raises UserError if the metadata at the start of `card` cannot be used.
    """
    name = repository.partition("/")[2]
    try:
        with_metadata = card if re.match(r"\s*---", card) else f"---\n{{}}\n---\n{card}"
        page = ModelCard("\n".join(re.split(r"\r\n?|\n", with_metadata)))
        metadata: Any = page.data
        for key in _REMOTE_IMAGES:
            metadata.pop(key)
        metadata.license = licence or metadata.license
        metadata.library_name = metadata.library_name or "transformers"
        if figures:
            metadata.model_name, metadata.eval_results = name, list(figures)
        text = re.sub(r"\A\s*# .*", "", page.text).replace(PLACE, repository).strip()
        parts = [f"# {name}", _inert(text), _evaluation(figures), sections.strip()]
        page.text = "\n\n".join(part for part in parts if part) + "\n"
        return str(page)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise UserError(f"README.md of the model has metadata that cannot be used: {one_line(str(error))}") from None


def _inert(text: str) -> str:
    """Markdown of others without HTML, images, and headings above the third level."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("![", r"\![")
    text = _HEADING.sub(lambda match: match[1] + "#" * min(6, len(match[2]) + 2), text)
    return _UNDERLINE.sub("\n", text)


def _evaluation(figures: Sequence[EvalResult]) -> str:
    rows = []
    for figure in figures:
        arguments = figure.metric_args or {}
        interval = " to ".join(f"{end:.4f}" for end in arguments.get("interval_95", ()))
        value = f"{figure.metric_value:.4f}"
        rows.append((figure.dataset_name, figure.metric_name, value, interval, arguments["settings"]))
    head = ("data", "metric", "value", "95% interval", "settings")
    return f"## Evaluation\n\n{_table(head, rows).rstrip()}" if rows else ""


def training_sections(
    folder: RunFolder, step: int, licences: Sequence[tuple[str, str]] = (), trust_folder: bool = False
) -> str:
    """The sections on the training of a checkpoint, as Markdown. They name no folder, host or user.

    Args:
        step: of the checkpoint. Later starts of the run are left out.
        licences: see licence_table.
        trust_folder: read also data sets on other machines, whose addresses the folder names.

    Raises UserError if the run's config cannot be read, or a data set is on another machine, without `trust_folder`.
    """
    newest = folder.read_environment()
    starts = [newest, *newest.get("earlier_starts", [])] if newest else []
    start: dict[str, Any] = next((start for start in starts if start.get("after_step", 0) < step), {})
    data = start.get("data", [])
    if not trust_folder:
        require_trust([entry.get("location") for entry in data], folder.environment)
    reproduction = _reproduction(load_config(folder.config), start)
    return f"{_data(data)}{licence_table(licences)}\n## Reproduce\n\n{reproduction}"


def licence_table(licences: Sequence[tuple[str, str]]) -> str:
    """A table of the licences of the text that the publisher states, as (source or "all text", licence)."""
    if not licences:
        return "The licences of the text are not stated.\n"
    return _table(("text", "licence, as stated by the publisher"), licences)


def _data(data: list[dict[str, Any]]) -> str:
    rows = [
        (
            entry.get("name"),
            f"{entry.get('documents', 0):,}",
            f"{entry.get('tokens', 0):,}",
            f"`{entry.get('fingerprint')}`",
        )
        for entry in data
    ]
    text = "## Training data\n\n"
    if rows:
        text += _table(("data set", "documents", "tokens", "fingerprint"), rows) + "\n"
    if sources := _sources({entry.get("location"): entry.get("fingerprint") for entry in data}):
        text += _table(("source of the text", "documents", "tokens"), sources) + "\n"
    return text


def _sources(fingerprints: dict[Any, Any]) -> list[tuple[str, str, str]]:
    """Documents and tokens of the largest sources, of those data sets that are still there and the same."""
    documents: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for location, fingerprint in fingerprints.items():
        try:
            manifest = Dataset(str(location)).manifest
        except UserError:
            continue
        for source in manifest.sources if manifest.fingerprint == fingerprint else ():
            name = source.source or (redact(shown(source.name)) if is_url(source.name) else file_name(source.name))
            documents[name] += source.documents
            tokens[name] += source.tokens
    rows = [(name, f"{documents[name]:,}", f"{count:,}") for name, count in tokens.most_common(_SOURCES)]
    rest = sum(tokens.values()) - sum(count for _, count in tokens.most_common(_SOURCES))
    return [*rows, ("others", "", f"{rest:,}")] if rest else rows


def _reproduction(config: Config, start: dict[str, Any]) -> str:
    values = _without_places(config.model_dump(mode="json", exclude_defaults=True, exclude=_PRIVATE))
    values["run"] = {"dir": "runs/reproduction"} | values.get("run", {})
    if config.model.rotary:  # its default depends on the form
        values["model"]["global_rope_theta"] = config.model.global_rope_theta
    text = "Save this as `config.yaml`, set the places of the data, and run `maskwright train config.yaml`.\n"
    settings = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))  # no text of the settings ends it
    text += f"\n{fence}yaml\n{settings}{fence}\n"
    if start:
        packages = {name: version for name, version in start.get("packages", {}).items() if version}
        versions = f"Python {start.get('python')}, {on_one_line(packages).strip('{}')}"
        text += f"\nVersions: {_plain_text(versions)}. Processes: {_plain_text(str(start.get('processes')))}.\n"
    return text


def _without_places(value: Any) -> Any:
    """The values of a config with the last two parts of absolute paths, and URLs without secrets."""
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    if not isinstance(value, str):
        return value
    return "/".join(PurePath(value).parts[1:][-2:]) if value.startswith("/") else redact(shown(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, with its final newline. Cells are plain text of one line, or a word in backticks."""
    cells = (
        [str(cell) if re.fullmatch(r"`[\w ]*`", str(cell)) else _plain_text(str(cell)) for cell in line]
        for line in [head, ["---"] * len(head), *rows]
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _plain_text(text: str) -> str:
    """Text of others as one line of Markdown that shows it: no HTML, link, image or heading."""
    return re.sub(r"[\\`<>\[\]|!]", r"\\\g<0>", one_line(text))
