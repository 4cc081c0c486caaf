"""The file that `--json` names: looked at before the work, written before anything is printed."""

from pathlib import Path
from typing import Any

from data_prep.errors import UserError, cannot_write
from data_prep.files import check_writable, write_json


def check_json_output(file: Path) -> None:
    """Raise UserError if it cannot be written: it is a folder, or the nearest folder above it takes no files."""
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file to write all figures to")
    check_writable(file, "--json")


def write_json_output(file: Path, value: Any) -> None:
    """As write_json, the folders above included; raises UserError where the disk takes no more."""
    try:
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_json(file, value)
    except OSError as error:
        raise cannot_write(file, error, "--json") from error
