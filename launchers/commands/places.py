"""Where commands write: files and folders of this machine, or of a file system that it has mounted."""

from pathlib import Path

from data_prep.errors import UserError
from data_prep.remote import is_url, shown


def local(place: str | Path) -> Path:
    """The path of an option that says where to write.

    Raises:
        UserError: for a URL, which would become a folder of a strange name here.
    """
    if is_url(str(place)):  # a default is a path already
        raise UserError(
            f"{shown(str(place))} is a URL; write to a local path, and copy what is there when it is finished"
        )
    return Path(place)
