"""Record of an export, in its folder: the checkpoint that it was made of, and the SHA-256 of each of its files."""

from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.common.files import sha256_file, write_json
from data_prep.common.reading import read_json, require_own_files
from pretrain.checkpoint import Checkpoint, manifest_sha256

RECORD = "maskwright_export.json"


@dataclass(frozen=True)
class ExportRecord:
    """The contents of maskwright_export.json.

    step: of the checkpoint. checkpoint_sha256: of its manifest. files: SHA-256 by name.
    """

    step: int
    checkpoint_sha256: str
    files: dict[str, str]

    @classmethod
    def write(cls, folder: Path, saved: Checkpoint) -> None:
        """Write the record of the export of a checkpoint, after all its other files. Raises OSError."""
        write_json(folder / RECORD, asdict(cls(saved.step, manifest_sha256(saved.path), _digests(folder))))

    @classmethod
    def read(cls, folder: Path) -> "ExportRecord | None":
        """The record in an export; None if it has none. Raises UserError if it is damaged."""
        if not (folder / RECORD).exists():
            return None
        record: ExportRecord = read_json(folder / RECORD, cls)
        return record

    def changed_files(self, folder: Path) -> list[str]:
        """A phrase for each file of an export that is missing or not as recorded. Raises OSError.

        Raises UserError for a link, which can lead to any file.
        """
        now = _digests(folder)
        differing = sorted(name for name, digest in self.files.items() if now.get(name) != digest)
        return [f"{name} {'differs from its SHA-256' if name in now else 'is missing'}" for name in differing]


def _digests(folder: Path) -> dict[str, str]:
    require_own_files(folder)
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != RECORD}
