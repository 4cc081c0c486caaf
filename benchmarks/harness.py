"""Shared by the benchmarks and experiments: options, rounds in turns, Markdown tables and result pages."""

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer

ROOT = Path(__file__).parents[1]
BOOKS = ROOT / "configs/demo/books.jsonl.zst"  # the bundled text
LOAD = os.getloadavg()[0]  # before the benchmark starts


def options(description: str | None, page: str, folder: str = "benchmarks") -> argparse.ArgumentParser:
    """A parser with the option --out, by default `folder`/results/`page`.md."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"{folder}/results/{page}.md"
    parser.add_argument("--out", type=Path, default=ROOT / default, help=f"result page (default {default})")
    return parser


def existing(path: Path) -> Path:
    """The absolute path of a file, which is read later from another folder."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    return path.absolute()


def run(main: Callable[[], None]) -> None:
    """Call `main`; a UserError ends the process with one line."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")


def warn_if_busy() -> None:
    if LOAD > 0.5:
        print(f"warning: the load average is {LOAD:.1f}; other work on this machine falsifies the times")


def call(command: Sequence[Any], **options: Any) -> str:
    """Run a command and return what it printed; if it fails, raise UserError with its errors."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode:
        raise UserError(f"{shlex.join(words)} failed:\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout


def maskwright(*words: Any, **options: Any) -> str:
    """`call` the command line of this checkout."""
    environment = dict(options.pop("env", os.environ))
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))}
    return call([sys.executable, "-m", "launchers.cli", *words], env=environment, **options)


def prepare_text(folder: Path, text: Path, vocab_size: int, *options: Any) -> Path:
    """A data set of a file of text in `folder`, with a tokenizer trained on it. options: of `prep run`."""
    tokenizer, data = folder / "tokenizer", folder / "data"
    maskwright(
        *("tokenizer", "train", "--input", text, "--kind", "wordpiece"),
        *("--vocab-size", vocab_size, "--out", tokenizer),
    )
    maskwright("prep", "run", "--input", text, "--tokenizer", tokenizer, "--valid-fraction", 0, "--out", data, *options)
    return data


def seconds_in_turns(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round; each round calls every side once."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begin = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Ratio of each pair."""
    return [one / other for one, other in zip(numerators, denominators, strict=True)]


def spread(values: Sequence[float], form: str = ",.2f") -> str:
    """Median, smallest and largest value, each formatted as `form`."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(header: Sequence[str], *rows: Iterable[str], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are aligned to the left, the others to the right."""
    ruler = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def memory(name: str, pid: int | str = "self") -> int:
    """Bytes of a line of /proc/PID/status, such as VmHWM: the peak of resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def write_page(out: Path, text: str, packages: Iterable[str], shown: bool = True) -> None:
    """Write the page to `out`, with a table of machine, versions, commit and command at its end, and print it."""
    page = f"{text.strip()}\n\n{_conditions(packages)}\n"
    if shown:
        print(page)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(out) as file:
        file.write(page.encode())


def _conditions(packages: Iterable[str]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    # Absolute paths are shortened: the figures do not depend on where the files are.
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    module = ".".join(Path(os.path.relpath(sys.argv[0], ROOT)).with_suffix("").parts)
    return table(
        ["", ""],
        ["date", time.strftime("%Y-%m-%d")],
        ["processor", f"{_processor()}, {os.cpu_count()} cores; load average before the start {LOAD:.2f}"],
        ["versions", f"Python {platform.python_version()}, {versions}"],
        ["commit", _commit()],
        ["command", f"`{shlex.join(['python', '-m', module, *words])}`"],
        left=2,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    """The checked-out commit; "unknown" without git or outside of a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "--short", "HEAD").strip() + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
