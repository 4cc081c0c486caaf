"""Families of runs: which run was branched from which checkpoint of another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launchers.watch.run_table import Seen
from pretrain.checkpoint import step_of
from pretrain.reporting import read_config
from pretrain.run import RunFolder


@dataclass(frozen=True)
class Branch:
    """A run in its family.

    depth: 0 for a run without a parent. parent, step: the folder and the checkpoint that it was branched from.
    """

    seen: Seen
    depth: int
    parent: Path | None
    step: int | None

    def facts(self) -> dict[str, Any]:
        """The branch and its losses, as JSON values."""
        summary = self.seen.facts()
        return {
            "run": str(self.seen.summary.run),
            "parent": str(self.parent) if self.parent else None,
            "parent_step": self.step,
            **{name: summary[name] for name in ("state", "step", "loss", "eval_loss")},
        }


def parent_of(run: Path) -> tuple[Path | None, int | None]:
    """The folder of the run that a run was branched from, and the step; two times None without one."""
    path = Path(str(read_config(RunFolder(run).config).get("run.resume", "")))
    step = step_of(path.name)
    if step is None or path.parent.parent.resolve() == run.resolve():
        return None, None
    return path.parent.parent.resolve(), step


def family(found: Sequence[Seen]) -> list[Branch]:
    """The runs, each after its parent and by the step of the branch; runs whose parent is not among them come first."""
    known = {seen.summary.run.resolve() for seen in found}
    parents = {seen.summary.run: parent_of(seen.summary.run) for seen in found}

    def below(parent: Path | None, depth: int) -> Iterator[Branch]:
        for seen in sorted(found, key=lambda seen: (parents[seen.summary.run][1] or 0, str(seen.summary.run))):
            of, step = parents[seen.summary.run]
            if (of if of in known else None) != parent:
                continue
            yield Branch(seen, depth, of, step)
            yield from below(seen.summary.run.resolve(), depth + 1)

    return list(below(None, 0))
