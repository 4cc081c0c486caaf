"""The commands and configs of docs/slurm.md, as files and scripts."""

import re
from pathlib import Path

import numpy as np

from tests.support.datasets import make_dataset

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
SHARED = "/shared"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in the page's order."""
    assert not re.search(r"^ +```", PAGE, re.MULTILINE), "indented blocks would be overlooked"
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The lines of all blocks of shell."""
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]


def lay_out(shared: Path) -> list[Path]:
    """Make of a folder what the page calls /shared; returned are its configs, run.yaml first."""
    shared.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    make_dataset(shared / "data" / "books" / "train", [rng.integers(5, 100, size=60) for _ in range(300)])
    configs = [shared / "run.yaml", *(shared / f"config-{number}.yaml" for number in range(1, len(blocks("yaml"))))]
    for path, text in zip(configs, blocks("yaml"), strict=True):
        path.write_text(text.replace(SHARED, str(shared)).replace("/scratch", str(shared)))
    (shared / "site.yaml").write_text((ROOT / "configs" / "cluster" / "example.yaml").read_text())
    return configs
