"""The files of a published model: the files of an export, with a longer model card."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from huggingface_hub import EvalResult

from data_prep.common.errors import UserError
from data_prep.common.files import atomic_folder, write_file
from data_prep.common.reading import MAX_CONFIG_BYTES, read_text, require_own_files
from data_prep.storage import is_run
from pretrain.export.export_record import RECORD, ExportRecord
from pretrain.export.published_card import licence_table, published_card, training_sections
from pretrain.run import RunFolder

_CARD = "README.md"
_KINDS = (".json", ".safetensors", ".txt", ".model", ".jinja")  # of a folder without a record of its files


@dataclass(frozen=True)
class Revision:
    """A revision of a repository: its name and its files, each as a path or as its content."""

    name: str
    files: dict[str, Path | bytes]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in self.files.values())

    def write(self, folder: Path) -> None:
        """Write the files into a new folder. Raises OSError."""
        with atomic_folder(folder) as temporary:
            for name, content in self.files.items():
                if isinstance(content, bytes):
                    write_file(temporary / name, content)
                else:
                    shutil.copyfile(content, temporary / name)


def _run_of(export: Path) -> Path | None:
    """The run of an export in RUN/exports; None for another folder."""
    exports = export.absolute().parent
    return exports.parent if exports.name == "exports" and is_run(exports.parent) else None


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

    Raises:
        UserError: if a file of the export is a link or not as recorded, or the run's config cannot be read. OSError.
    """
    run = _run_of(export)
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
