"""Debian's chromium without a screen: a page after its scripts have run, and what they complained of."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def opened(page: Path, profile: Path, *options: str) -> tuple[str, list[str]]:
    """The DOM of a page as HTML, and the lines of the console."""
    assert CHROMIUM
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=3000", "--enable-logging=stderr", "--v=0", *options, "--dump-dom"]
    result = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout, re.findall(r"CONSOLE.*", result.stderr)
