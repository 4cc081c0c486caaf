"""End a run whose reduced gradients are wrong: name parameter, ZeRO stage, precision and version of DeepSpeed."""

import math
from importlib.metadata import version

from pretrain.config import Config
from pretrain.guards.step_guard import EndOfRun


def end_for_wrong_gradients(differences: dict[str, float], config: Config) -> None:
    """End the run after its trial step; on every rank.

    Args:
        differences: relative differences of gradients from a plain all-reduce, by parameter.
        config: the run.

    Raises:
        EndOfRun: always.
    """
    zero, offloads = config.zero, config.zero.offload != "none"
    worst, size = max(differences.items(), key=lambda difference: difference[1])
    others = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    differ = "are not finite, but the gradients of a plain all-reduce are,"
    if math.isfinite(size):
        differ = f"differ from a plain all-reduce by {100 * size:.2g}% of their norm"
    parts = [f"ZeRO {zero.stage}", *(["offload to the CPU"] if offloads else []), config.train.precision]
    parts += ["torch.compile"] if config.train.compile is True else []
    advice = f"Set zero.stage=1{' and zero.offload=none' if offloads else ''}, or use another version of DeepSpeed."
    if zero.stage == 1 and not offloads:  # Maskwright's own reduction
        advice = "Use another version of DeepSpeed or PyTorch."
    raise EndOfRun(
        f"Gradients of {worst}{others} {differ} with {', '.join(parts)} and DeepSpeed {version('deepspeed')}. {advice}"
    )
