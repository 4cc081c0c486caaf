"""The models of a merge, as users name them, and their weights.

Averaging the checkpoints of a phase with a constant learning rate replaces the decay of this rate: LAWA (Kaddour, "Stop
wasting my time!", 2022, arXiv:2209.14981) and WSM (Tian et al., "WSM", 2025, arXiv:2507.17634).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_prep.common.errors import UserError
from data_prep.storage import not_a, require_run
from pretrain.checkpoint import committed, step_of
from pretrain.config import View
from pretrain.export.resolve_model import exported_folder
from pretrain.run import RunFolder

MergeWeights = Literal["uniform", "ema", "linear-decay"]
_RANGE = re.compile(r"(.+)@(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class MergePart:
    """A model to merge.

    folder: its Hugging Face folder. run: of a checkpoint, whose export is made if `folder` is missing.
    step: of a checkpoint, or of an export with the name of one. view: of the export, see export_run.
    """

    folder: Path
    run: Path | None
    step: int | None
    view: View | None = None

    @classmethod
    def of_checkpoint(cls, run: Path, step: int, view: View | None) -> "MergePart":
        return cls(RunFolder(run).export_of(step, view=view and view.value), run, step, view)

    def export(self) -> None:
        """Make the folder if it is missing. Raises UserError if the checkpoint cannot be exported."""
        if self.run and self.step is not None:
            exported_folder(self.run, self.step, self.view)


def merge_parts(name: str, view: View | None) -> list[MergePart]:
    """The models that an argument names: RUN@A..B, a checkpoint, or a Hugging Face folder; oldest first.

    Raises UserError if it names something else, or the run keeps fewer than two checkpoints from step A to step B.
    """
    path = Path(name)
    if (found := _RANGE.fullmatch(name)) and not path.exists():
        return _parts_of_run(Path(found[1]), int(found[2]), int(found[3]), view)
    step = step_of(path.name)
    if (path / "config.json").is_file():
        if view:
            raise UserError(f"{path} is a model with one view. Remove --view, or name checkpoints of its run.")
        return [MergePart(path, None, step)]
    run = path.parent.parent
    if step is None or (step, path) not in committed(RunFolder(run).checkpoints):
        wanted = "a Hugging Face model folder or a checkpoint of a run"
        raise not_a(path, wanted, "Name such folders, or the checkpoints of a run as RUN@FIRST_STEP..LAST_STEP.")
    require_run(run)
    return [MergePart.of_checkpoint(run, step, view)]


def _parts_of_run(run: Path, first: int, last: int, view: View | None) -> list[MergePart]:
    require_run(run)
    kept = sorted(step for step, _ in committed(RunFolder(run).checkpoints))
    chosen = [step for step in kept if first <= step <= last]
    if len(chosen) < 2:
        raise UserError(
            f"{run} has {len(chosen) or 'no'} checkpoint from step {first} to {last}, and a merge needs two. It keeps "
            f"{'steps ' if kept else 'none'}{', '.join(map(str, kept))}; see checkpoint.keep and checkpoint.keep_every."
        )
    return [MergePart.of_checkpoint(run, step, view) for step in chosen]


def merge_weights(kind: MergeWeights, steps: Sequence[int | None], decay: float) -> list[float]:
    """The weights of models of one run, whose sum is 1.

    Args:
        steps: of the checkpoints, oldest first. If some are unknown or not ascending, all count as evenly spaced.
        decay: of `ema`.

    - `uniform` is LAWA.
    - `ema`: each weight is `decay` times the next one. This is the moving average of the checkpoints, divided by the
      sum of its weights as in Adam (Kingma and Ba, 2015), so that the oldest one has no extra weight.
    - `linear-decay`: the same updates under a learning rate that falls linearly, from its full value at the first
      checkpoint to 0 at the last one.

    Derivation of `linear-decay`. Let d_i be the sum of the updates between the checkpoints at steps s_(i-1) and s_i.
    Then checkpoint j is m_j = m_0 + d_1 + ... + d_j, and a merge with weights c_0 to c_k is (WSM)

        sum_j c_j m_j = m_0 + sum_i w_i d_i,  where w_i = c_i + c_(i+1) + ... + c_k.

    So the merge multiplies the updates of interval i by w_i. A linear decay multiplies an update by the share of the
    steps that is left, which in interval i is on average w_i = (s_k - (s_(i-1) + s_i) / 2) / (s_k - s_0). Hence
    c_i = w_i - w_(i+1) = (s_(i+1) - s_(i-1)) / (2 (s_k - s_0)), with s_0 for s_(-1) and s_k for s_(k+1): the mean of
    the weights over time by the trapezoidal rule. With a checkpoint after each step, the merge is exactly the decay.
    Otherwise all updates of an interval get its mean factor. Gradients that a smaller rate would change stay the same.
    """
    numbers = [step for step in steps if step is not None]
    if len(numbers) < len(steps) or sorted(set(numbers)) != numbers:
        numbers = list(range(len(steps)))
    shares: list[float] = [decay**age if kind == "ema" else 1 for age in reversed(range(len(numbers)))]
    if kind == "linear-decay":
        neighbours = zip(numbers[:1] + numbers[:-1], numbers[1:] + numbers[-1:], strict=True)
        shares = [after - before for before, after in neighbours]
    return [share / sum(shares) for share in shares]
