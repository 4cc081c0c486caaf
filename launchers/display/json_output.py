"""The output file of `--json`: checked before the work, written before anything is printed."""

from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError, cannot_write
from data_prep.common.files import check_writable, write_json


def check_json_output(file: Path) -> None:
    """Raise UserError if the file cannot be written: it is a folder, or the nearest existing parent is not writable."""
    if file.is_dir():
        raise UserError(f"{file} is a folder. Name a file for --json.")
    check_writable(file, "--json")


def write_json_output(file: Path, value: Any) -> None:
    """Write JSON, and create parent folders. Raises UserError if the disk is full."""
    try:
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_json(file, value)
    except OSError as error:
        raise cannot_write(file, error, "--json") from error
