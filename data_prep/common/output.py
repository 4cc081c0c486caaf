"""Standard output and standard error without secrets and control characters, and without an end when a reader ends."""

import errno
import os
import stat
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from data_prep.common.errors import UserError, reason_of, without_controls
from data_prep.common.urls import hide_secrets, hide_tokens


class LastingStream:
    """A text stream whose reader may end, such as `head` or a closed terminal: the text is dropped from then on.

    Without it, the next line would end the process, long before its work is done.
    """

    def __init__(self, stream: TextIO, is_needed: bool) -> None:
        """`is_needed`: other failures, such as a full disk, raise UserError. Otherwise the text is dropped."""
        self._stream, self._is_needed = stream, is_needed
        self.has_lost_reader = False

    def write(self, text: str) -> int:
        try:
            if text:  # typer writes an empty one, and ignores its error
                self._stream.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        descriptor = self._stream.fileno()
        is_terminal_gone = error.errno == errno.EIO and not stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.has_lost_reader = error.errno == errno.EPIPE or is_terminal_gone
        if not self.has_lost_reader and not self._is_needed:
            return  # there may be room again for the next line of a log
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)  # also for libraries in C, child processes, and the last flush of Python
        os.close(nowhere)
        if not self.has_lost_reader:
            raise UserError(f"Cannot write the output: {reason_of(error)}. Make room, or write it to another place.")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class GuardedStream:
    """A text stream that hides secrets, and writes control characters as escapes such as `\\u001b`.

    Files, servers and users of others decide a part of what is printed: they could change the window's title, hide
    lines, or repeat the token of a request. rich, which formats with control characters, writes past the stream, so
    its text must be cleaned before.
    """

    def __init__(self, stream: TextIO, addresses: bool, is_needed: bool) -> None:
        """`addresses`: also hide secrets in addresses, which may be text in the output of a command."""
        self.rich_proxied_file = LastingStream(stream, is_needed)  # rich looks for this name
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


def guard_output(has_result: bool = True) -> None:
    """Guard the standard streams of this process, unless they are guarded. The text of a closed one is dropped.

    has_result: standard output is the result of the process and not a log, so an error of writing is not ignored.
    """
    if not isinstance(sys.stdout, GuardedStream):
        out, err = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        sys.stdout = cast(TextIO, GuardedStream(out, addresses=False, is_needed=has_result))
        sys.stderr = cast(TextIO, GuardedStream(err, addresses=True, is_needed=False))
