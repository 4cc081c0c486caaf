"""Text files that people give: of examples, of sentences."""

import io
from pathlib import Path

from data_prep.compressed import DAMAGE, decompressed
from data_prep.errors import UserError
from data_prep.remote import file_name, is_url, open_remote, remote_errors, shown


def read_text(path: str) -> str:
    """The text of a file or URL, also of one compressed as its name tells (.gz, .zst).

    Raises:
        UserError: if it cannot be read, is not UTF-8, or holds nothing.
    """
    try:
        data = decompressed(_download(path) if is_url(path) else Path(path).read_bytes(), file_name(path))
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()  # any ends of lines
    except UnicodeDecodeError as error:
        raise UserError(f"{shown(path)} is not a text in UTF-8 ({error.reason} at byte {error.start})") from None
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, ValueError, *DAMAGE) as error:
        raise UserError(f"{shown(path)} cannot be read ({error})") from None
    if not text.strip():
        raise UserError(f"{shown(path)} is empty")
    return text


def _download(url: str) -> bytes:
    remote = open_remote(url)
    with remote_errors(url):
        data: bytes = remote.fs.cat_file(remote.path)
        return data
