"""Text files that people give: of examples, of sentences."""

import io

import fsspec

from data_prep.compressed import DAMAGE, decompressed
from data_prep.errors import UserError
from pretrain.redact import redact


def read_text(path: str) -> str:
    """The text of a file or URL, also of one compressed as its name tells (.gz, .zst).

    Raises:
        UserError: if it cannot be read, is not UTF-8, or holds nothing.
    """
    try:
        with fsspec.open(path, "rb") as file:
            data = decompressed(file.read(), path)
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()  # any ends of lines
    except UnicodeDecodeError as error:
        raise UserError(f"{redact(path)} is not a text in UTF-8 ({error.reason} at byte {error.start})") from None
    except FileNotFoundError:
        raise UserError(f"{redact(path)}: there is no such file") from None
    except (OSError, ValueError, ImportError, *DAMAGE) as error:
        raise UserError(f"{redact(path)} cannot be read ({redact(str(error))})") from None
    if not text.strip():
        raise UserError(f"{redact(path)} is empty")
    return text
