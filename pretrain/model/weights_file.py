"""The initial weights file of a run (model.init), and its digest."""

from pathlib import Path

from data_prep.errors import UserError
from data_prep.files import sha256_file


def weights_file(folder: Path) -> Path:
    """Where a Hugging Face folder has its weights."""
    return folder / "model.safetensors"


def digest_of(folder: Path) -> str:
    """The SHA-256 of the file of a folder's weights."""
    try:
        return sha256_file(weights_file(folder))
    except OSError as error:
        raise UserError(f"model.init: {weights_file(folder)} cannot be read ({error.strerror})") from error
