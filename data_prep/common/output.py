"""Standard output and standard error without secrets, and without characters that control a terminal."""

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from data_prep.common.errors import without_controls
from data_prep.common.urls import hide_secrets, hide_tokens


class GuardedStream:
    """A text stream that hides secrets, and writes control characters as escapes such as `\\u001b`.

    Files, servers and users of others decide a part of what is printed: they could change the window's title, hide
    lines, or repeat the token of a request. rich, which formats with control characters, writes past the stream, so
    its text must be cleaned before.
    """

    def __init__(self, stream: TextIO, addresses: bool) -> None:
        """`addresses`: also hide secrets in addresses, which may be text in the output of a command."""
        self.rich_proxied_file = stream  # rich looks for this name
        self._hide = hide_secrets if addresses else hide_tokens

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""  # of a progress line
        self.rich_proxied_file.write(start + self._hide(without_controls(text[len(start) :], keep="\n\t")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guard_output() -> None:
    """Guard the standard streams of this process, unless they are guarded."""
    if not isinstance(sys.stdout, GuardedStream):
        sys.stdout = cast(TextIO, GuardedStream(sys.stdout, addresses=False))
        sys.stderr = cast(TextIO, GuardedStream(sys.stderr, addresses=True))
