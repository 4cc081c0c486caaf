"""What a result file says of the machine and the commit that it was measured on."""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]


def conditions(script: str, packages: Iterable[str], load: float) -> str:
    """A Markdown table: date, processor, load before the start, versions, commit, command."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    # Figures do not depend on where the files lie.
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return f"""| | |
|---|---|
| date | {time.strftime("%Y-%m-%d")} |
| processor | {_processor()}, {os.cpu_count()} cores; load average before the start {load:.2f} |
| versions | Python {platform.python_version()}, {versions} |
| commit | {_commit()} |
| command | `{shlex.join(["python", f"benchmarks/{script}", *words])}` |
"""


def warn_if_busy() -> float:
    """The load average, with a warning where it makes measurements worthless."""
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"warning: the load average is {load:.1f}; other work on this machine makes the figures worthless")
    return load


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
