"""The kernels of a run: the fastest that agree with the plain step, or those that an earlier start has compared."""

from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from data_prep.common.files import sha256_file
from pretrain import kernels
from pretrain.data import Loader
from pretrain.distributed import all_gather_json, print_on_rank_zero
from pretrain.engine import Engine
from pretrain.kernels import Candidates, ComputeBackends, FlashAttention
from pretrain.resuming import ResumeState
from pretrain.setup import RunParts
from pretrain.trial.trial_step import Trial

_COMPARED = ("kernels", "kernels_reason", "kernels_made_with", "flash_attention")  # of environment.json


def installed_flash_attention(wanted: int | str) -> FlashAttention:
    """The version of flash attention to use, which every rank has; a collective.

    Args:
        wanted: the setting `train.flash_attention`.

    Raises UserError if a rank lacks the wanted version.
    """
    generation = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else None
    newest = {FlashAttention(*of_rank) for of_rank in all_gather_json(FlashAttention.installed(generation, wanted))}
    flash = newest.pop() if len(newest) == 1 else FlashAttention()
    flash.require(wanted)
    return flash


def choose_kernels(
    run: RunParts, engine: Engine, loader: Loader, state: ResumeState, resumed: bool
) -> tuple[RunParts, dict[str, Any]]:
    """The run with its kernels, which the model and the engine use from now on; a collective. Prints them.

    Args:
        resumed: use the record of the last start, if it is of such a machine.

    Returns:
        The run, and the choice as values of environment.json.
    """
    device = engine.device.type
    flash = installed_flash_attention(run.given.train.flash_attention)
    candidates = Candidates.of(run.given, device, flash.version)
    if resumed:
        last = (run.folder.read_environment() or {}) if run.rank == 0 else {}
        recorded = all_gather_json({name: last[name] for name in _COMPARED if name in last})
        machines = all_gather_json(made_with(device, flash))
        if len({*machines}) == 1:  # otherwise some ranks would compare kernels, and others not
            candidates = candidates.after_record(recorded[0], machines[0])
    choice = candidates.choice
    if choice is None:
        slow = "; torch.compile may take minutes" if candidates.paths[0].compiled else ""
        print_on_rank_zero(f"Comparing {candidates.paths[0]} with the plain step{slow}")
        choice = Trial(run.config, engine, loader, state).choose_path(candidates)
    backends = ComputeBackends.of(run.given, device, choice=choice)
    print_on_rank_zero(backends.start_line)
    record = {**backends.as_values(), "kernels_made_with": made_with(device, flash)}
    if run.given.model.arch == "auto":
        return run, record
    train = run.config.train.model_copy(update=choice.path.as_settings())
    return replace(run, config=run.config.model_copy(update={"train": train})), record


def made_with(device: str, flash: FlashAttention) -> str:
    """This rank's GPU, and the versions and sources that a comparison of kernels depends on."""
    gpu = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else device
    versions = [f"{name} {version(name)}" for name in ("torch", "triton") if find_spec(name)]
    return ", ".join(
        [gpu, *versions, *filter(None, [flash.package]), f"kernels {source_digest(Path(kernels.__file__).parent)}"]
    )


@cache
def source_digest(folder: Path) -> str:
    """A digest of the folder's Python files: their code may change while the version of the package does not."""
    return sha256("".join(map(sha256_file, sorted(folder.glob("*.py")))).encode()).hexdigest()[:12]
