"""End a run whose reduced gradients are wrong: name parameter, ZeRO stage, precision and version of DeepSpeed."""

import math
from importlib.metadata import version

from pretrain.config import Config
from pretrain.guards.step_guard import EndOfRun


def end_for_wrong_gradients(differences: dict[str, float], config: Config, step: int | None = None) -> None:
    """End the run; on every rank.

    Args:
        differences: relative differences of gradients from a plain all-reduce, by parameter.
        config: the run.
        step: the number of the step; None for the trial step.

    Raises:
        EndOfRun: always.
    """
    worst = max(differences, key=differences.__getitem__)
    others = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    which = f"In step {step}, gradients" if step else "Gradients"
    earlier = (
        " Steps since the last comparison may have used wrong gradients: go back to a checkpoint before them."
        if step
        else ""
    )
    raise EndOfRun(
        f"{which} of {worst}{others} {_size(differences[worst])} with {_settings(config)}. {_advice(config)}.{earlier}"
    )


def _size(difference: float) -> str:
    if math.isinf(difference):
        return "are not finite, but the gradients of a plain all-reduce are,"
    return f"differ from a plain all-reduce by {100 * difference:.2g}% of their norm"


def _settings(config: Config) -> str:
    offload = ["offload to the CPU"] if config.zero.offload != "none" else []
    compiled = ["torch.compile"] if config.train.compile is True else []
    parts = [f"ZeRO {config.zero.stage}", *offload, config.train.precision, *compiled]
    return f"{', '.join(parts)} and DeepSpeed {version('deepspeed')}"


def _advice(config: Config) -> str:
    if config.zero.stage == 1 and config.zero.offload == "none":  # Maskwright's own reduction
        return "Use another version of DeepSpeed or PyTorch"
    offload = " and zero.offload=none" if config.zero.offload != "none" else ""
    return f"Set zero.stage=1{offload}, or use another version of DeepSpeed"
