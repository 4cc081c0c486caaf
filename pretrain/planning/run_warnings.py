"""Warnings about a run: it trains to the end, but its result is probably not the intended one. They stop no run."""

from collections.abc import Iterator

from data_prep.common.urls import redact
from data_prep.format import Dataset
from pretrain.config import Config, Phase
from pretrain.data import Sources

_HIGHEST_LR = 0.1
_MOSTLY = 0.5  # share of the first weights in an average


def run_warnings(config: Config) -> list[str]:
    """The warnings about a config and its data sets, each on one line.

    Raises UserError if a data set cannot be opened.
    """
    return [*settings_warnings(config), *_of_held_out(config)]


def settings_warnings(config: Config) -> list[str]:
    """The warnings about a config alone."""
    phases = [warning for phase in config.run_phases for warning in _of_phase(phase)]
    return [*dict.fromkeys(phases), *_of_run(config)]


def _of_phase(phase: Phase) -> Iterator[str]:
    """Warnings about the learning rate and the replacements of a phase."""
    where, span = f"phases.{phase.name}: " if phase.name else "", phase.spans["schedule"]
    settings, lr = phase.config.schedule, phase.config.optim.lr
    if span.start == phase.start and settings.warmup_steps >= span.steps:
        highest = lr * span.steps / (settings.warmup_steps + 1)
        yield (
            f"{where}schedule.warmup_steps ({settings.warmup_steps:,}) leaves none of the {span.steps:,} steps: the "
            f"learning rate only reaches {highest:.3g} of {lr:g} and never falls. Lower it, for example to "
            f"{max(1, span.steps // 16):,}."
        )
    if lr > _HIGHEST_LR:
        yield f"{where}optim.lr is {lr:g}, at which training usually diverges. Usual rates are 1e-5 to 2e-2."
    draws = any(kind.draws_masks for kind in phase.config.objective_kinds)
    if draws and phase.config.masking.replacement.mask + phase.config.masking.replacement.random == 0:
        yield (
            f"{where}masking.replacement changes no selected token, so the model learns to copy its input. "
            "Set mask, usually to 0.8."
        )


def _of_run(config: Config) -> Iterator[str]:
    """Warnings about parts of a run that its steps do not reach."""
    steps, ema = config.train.steps, config.optim.ema
    if late := [step for step in config.checkpoint.at_steps if step > steps]:
        yield f"checkpoint.at_steps has {late[0]:,}, after the last step ({steps:,}). No checkpoint is written there."
    if ema is not None and ema**steps > _MOSTLY:
        yield (
            f"optim.ema ({ema:g}) averages over more than the {steps:,} steps of the run: {ema**steps:.0%} of the "
            "averaged weights are the initial ones. Lower it."
        )


def _of_held_out(config: Config) -> Iterator[str]:
    """A warning if the held-out set has training documents."""
    if config.data.valid is None:
        return
    data = Sources.open(config)
    held_out = data.open_held_out(config.data)
    shared = [redact(str(train.location)) for train in data.datasets if held_out and _share(train, held_out)]
    if shared:
        yield (
            f"data.valid ({redact(config.data.valid)}) holds documents of data.train ({shared[0]}), so eval/loss is no "
            "held-out loss. Prepare the text with --valid-fraction, or choose another data.valid."
        )


def _share(train: Dataset, held_out: Dataset) -> bool:
    """Whether two data sets are the same, or hold equally many documents, tokens and bytes of one input."""
    if train.manifest.fingerprint == held_out.manifest.fingerprint:
        return True
    inputs = [
        {(own.digest, own.documents, own.tokens, own.text_bytes) for own in dataset.manifest.sources if own.documents}
        for dataset in (train, held_out)
    ]
    return bool(inputs[0] & inputs[1])
