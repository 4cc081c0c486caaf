"""Open files at fsspec URLs, retry, report errors, and hide secrets in URLs from messages, logs and MLflow.

fsspec finds the credentials.
"""

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from data_prep.common.errors import NO_ROOM, UserError, first_line

T = TypeVar("T")
ATTEMPTS = 5
BACKOFF_SECONDS = 1.0
_URL = re.compile(r"(\w[\w+.-]*::)*\w[\w+.-]*://")
_HUB_ID = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")
_LOCAL = ("file://", "memory://")
_TOKEN = re.compile(
    r"(\bhf_(?=\w{8})|(?i:\bauthorization\b\W{1,4}(?:bearer |basic |token )?|\bbearer )(?=[\w.~+/=-]{8}))[\w.~+/=-]+"
)
_HTTP = ("http", "https")
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, ImportError, UserError)
# The names of a file's version in different file systems, best first: checksums and ETags, then times.
_VERSIONS = (
    ("ETag", "etag", "md5Hash", "md5", "content_md5", "Content-MD5", "Digest", "checksum", "crc32c", "CRC", "sha256"),
    ("xet_hash", "blob_id", "oid", "sha"),
    ("LastModified", "last_modified", "Last-Modified", "updated", "mtime", "modified", "date_time", "created"),
)


def is_url(location: str) -> bool:
    return _URL.match(location) is not None


def shown(location: str) -> str:
    """The location for messages, without the query of a URL, which can contain a signature."""
    return "::".join(map(without_query, location.split("::"))) if is_url(location) else location


def file_name(location: str) -> str:
    """The last part of a path or URL, without a query."""
    return os.path.basename(without_query(location.partition("::")[0]) if is_url(location) else location)


def without_query(url: str) -> str:
    """Remove the query. Except for HTTP, ? is also in patterns, so `name=` must follow, as in S3's `?versionId=1`."""
    is_http = url.partition("://")[0].lower() in _HTTP
    return re.sub(r"[?#].*" if is_http else r"\?[\w-]+=.*", "", url, flags=re.DOTALL)


def redact(text: str) -> str:
    """`text` without secrets of addresses, such as `user:password@`, `?password=...` and `&signature=...`."""
    text = re.sub(r"(?<!sqlite)://\S*@", "://***@", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:pass|pwd|token|secret|key|sig|cred|auth)[^=&\s]*=)[^&\s]+", r"\1***", text)


def hide_tokens(text: str) -> str:
    """`text` without tokens of Hugging Face and of HTTP headers, and without values of secret variables."""
    text = _TOKEN.sub(r"\1***", text)
    for value in _secret_values():
        text = text.replace(value, "***")
    return text


def hide_secrets(text: str) -> str:
    """`text` without access tokens and without secrets of addresses, for any message."""
    return hide_tokens(redact(text))


@functools.cache
def _secret_values() -> list[str]:
    """Values of environment variables that are secrets by their name, and neither short nor paths; longest first."""
    values = {value for name, value in os.environ.items() if is_secret(name, "")}
    return sorted((value for value in values if len(value) >= 8 and not value.startswith("/")), key=len, reverse=True)


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable has a secret, by its name (`HF_TOKEN`) or by an address in its value."""
    words = r"pass|pwd|token(?!iz)|secret|credential|(?:^|_)(?:api)?keys?(?:_|$)"
    return bool(re.search(words, name, re.IGNORECASE)) or redact(value) != value


def assigned_secret(shell: str) -> str | None:
    """The variable that gets a secret in plain text in shell code, unlike `TOKEN=$(cat ~/.token)`."""
    for name, value in re.findall(r"""(\w+)=['"]?(?=([^\s'"]*))""", shell):
        if value and not value.startswith(("$", "`")) and is_secret(name, value):
            return str(name)
    return None


class RemoteVersion(NamedTuple):
    """The size of a remote file in bytes (None if unknown) and its version (empty if unknown)."""

    size: int | None
    version: str


class Remote(NamedTuple):
    """A file system and a path in it. `tail` is the rest of a chained URL (`zip://a.txt::s3://b/c.zip`)."""

    fs: Any
    path: str
    tail: str

    def url(self, path: str) -> str:
        """The URL of another path of this file system."""
        return self.fs.unstrip_protocol(path) + self.tail

    @property
    def is_local(self) -> bool:
        return "file" in ((self.fs.protocol,) if isinstance(self.fs.protocol, str) else self.fs.protocol)


def require_trust(locations: Iterable[str | None], place: object, advice: str = "Add --yes") -> None:
    """Refuse to connect to an address that a folder names, which may come from somebody else.

    Raises UserError for the first location that is not on this machine. `place` names it; `advice` begins what to do.
    """
    for location in locations:
        if location and is_url(location) and not all(part.startswith(_LOCAL) for part in location.split("::")):
            raise UserError(
                f"{redact(shown(location))} is known from {place} alone. {advice} to read it with your credentials."
            )


def open_remote(url: str) -> Remote:
    """Raises UserError for an unknown protocol, a missing package, and a password in the URL."""
    import fsspec

    for part in url.split("::"):
        _refuse_credentials(part)
    head, chain, tail = url.partition("::")
    if "://" not in head:
        raise UserError(f"{shown(url)} begins with {head}::, which is not needed: remote files are cached anyway.")
    if any(part.startswith("reference:") for part in url.split("::")):  # its description can name any local file
        raise UserError(f"{shown(url)} is of the kind reference://, which is not read; name the files themselves.")
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except Exception as error:
        raise UserError(f"{shown(url)} cannot be opened: {_first_line(error)}") from error
    return Remote(fs, path, chain + tail)


def _refuse_credentials(url: str) -> None:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.password or (parts.scheme in _HTTP and parts.username):  # which may be a token
            raise UserError(
                f"The URL for {parts.hostname} holds a password or a user name; use fsspec's configuration instead."
            )


@contextlib.contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn the exceptions of a file system, which have many types, into a UserError with the URL."""
    try:
        yield
    except UserError:
        raise
    except Exception as raised:
        error = true_error(raised)
        if getattr(error, "errno", None) in NO_ROOM:  # the local disk is full
            raise
        if isinstance(error, FileNotFoundError):
            message = f"{shown(url)} does not exist, or is not visible with your credentials."
        elif isinstance(error, PermissionError):
            message = f"No permission to read {shown(url)}; check the credentials that fsspec finds."
        else:
            message = f"{shown(url)} cannot be read: {_first_line(error)}"
        raise UserError(message) from raised


def retried(action: Callable[[], T]) -> T:
    """The result of `action`, retried after temporary failures with doubled waiting times."""
    for attempt in range(ATTEMPTS):
        try:
            return action()
        except Exception as raised:
            error = true_error(raised)
            status = getattr(error, "status", 500)
            refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
            full = getattr(error, "errno", None) in NO_ROOM
            if refused or full or isinstance(error, _LASTING) or attempt == ATTEMPTS - 1:
                raise
            time.sleep(BACKOFF_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def true_error(error: Exception) -> BaseException:
    """The cause of an error: fsspec reports any failure of HTTP as "not found"."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None and getattr(cause, "status", None) != 404:
        of_http = type(cause).__module__.partition(".")[0] in ("aiohttp", "asyncio")
        return cause if of_http or isinstance(cause, OSError) else error
    return error


def _first_line(error: BaseException) -> str:
    status, reason = getattr(error, "status", None), getattr(error, "message", "")
    if status:  # of an HTTP response, whose text repeats the URL with its signature
        return f"the server answered {status} {reason}".rstrip()
    return first_line(error).partition("?")[0]


def hub_hint(name: str | Path, what: str) -> str:
    """` For a model of the Hub, write hub:...` for the message on a missing path; empty if it is no such name.

    Args:
        what: "model" or "tokenizer".
    """
    return f" For a {what} of the Hub, write hub:{name}." if _HUB_ID.fullmatch(str(name)) else ""


def hub_reason(error: BaseException) -> str:
    """The cause of an error of huggingface_hub in one line. Addresses, which may be signed, are left out."""
    while error.__cause__ is not None and not hasattr(error, "response"):
        error = error.__cause__
    if (response := getattr(error, "response", None)) is not None:
        return f"the server answered {response.status_code} {getattr(error, 'server_message', None) or ''}".rstrip()
    return first_line(error).partition("?")[0]


def remote_version(remote: Remote) -> RemoteVersion:
    """The size and version of a file. Raises the exceptions of its file system."""
    info = remote.fs.info(remote.path)
    if info.get("type") == "directory":
        raise IsADirectoryError(f"{remote.path} is a folder")
    properties = {**info, **(info.get("lfs") or {})}
    for names in _VERSIONS:
        if version := [f"{name}={properties[name]}" for name in names if properties.get(name)]:
            break
    return RemoteVersion(info.get("size"), " ".join(version))
