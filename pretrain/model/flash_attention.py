"""Flash attention over documents (`varlen`): the versions, and when a run can use them. Does not import torch.

torch has version 2 (Dao, "FlashAttention-2", 2023). Packages bring version 3 for Hopper (Shah et al.,
"FlashAttention-3", 2024) and version 4 for Blackwell. torch then gives them all calls of its `varlen_attn` in the
process. Both are young, so a run compares them with version 2 before it uses them.
"""

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from data_prep.common.errors import UserError, one_line
from data_prep.common.packages import installed_version

BUILT_IN = 2  # the version in torch


class _Package(NamedTuple):
    """A package with a newer version: its distribution, its module, and the GPUs it is for.

    generation: the major number of their compute capability.
    """

    name: str
    module: str
    generation: int
    gpus: str


_PACKAGES = {
    3: _Package("flash_attn_3", "flash_attn_interface", 9, "Hopper"),
    4: _Package("flash-attn-4", "flash_attn.cute.interface", 10, "Blackwell"),
}


class Fallback(NamedTuple):
    """The reason for attention without varlen, and what to change; no advice where there is no GPU."""

    reason: str
    advice: str = ""


def attention_fallback(device: str, precision: str, per_head: int, dropout: float, window: bool) -> Fallback | None:
    """Say why attention cannot be varlen (flash attention over documents); None if it can.

    Args:
        device: the type of torch's device.
        precision: as train.precision.
        per_head: dimensions of a head.
        window: whether varlen_attn has the argument window_size, see varlen_has_window.
    """
    if device != "cuda":
        return Fallback(f"the device is {device}, not cuda")
    found = []
    if precision not in ("bf16", "fp16"):
        found.append(Fallback(f"train.precision is {precision}", "set train.precision to bf16 or fp16"))
    if dropout:
        found.append(Fallback(f"model.dropout is {dropout}", "set model.dropout to 0"))
    if per_head % 8:
        advice = "choose a model.size whose hidden / heads is a multiple of 8"
        found.append(Fallback(f"heads have {per_head} dimensions, not a multiple of 8", advice))
    if not window:
        advice = "install a torch that has it, such as 2.13"
        found.append(Fallback("varlen_attn of this torch has no argument window_size", advice))
    if not found:
        return None
    return Fallback("; ".join(one.reason for one in found), "; ".join(one.advice for one in found))


@functools.cache
def varlen_has_window(torch_folder: Path | None = None) -> bool:
    """Whether torch's varlen_attn has the argument window_size, which causal and local attention need.

    Some builds of torch 2.11 lack it. The source is read, because importing torch takes seconds.

    Args:
        torch_folder: the package; the installed one by default.
    """
    if torch_folder is None:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return False
        torch_folder = Path(spec.origin).parent
    try:
        source = ast.parse((torch_folder / "nn/attention/varlen.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return False
    functions = (one for one in source.body if isinstance(one, ast.FunctionDef) and one.name == "varlen_attn")
    return any(arg.arg == "window_size" for one in functions for arg in (*one.args.args, *one.args.kwonlyargs))


class FlashAttention(NamedTuple):
    """A version of flash attention, and name and version of the package that brings it; empty for torch's own."""

    version: int = BUILT_IN
    package: str = ""

    @classmethod
    def installed(cls, generation: int | None) -> "FlashAttention":
        """The newest one for these GPUs.

        Version 4 on Hopper has no windows, no backward pass for small heads, and no gain over version 3.

        Args:
            generation: the major number of the GPU's compute capability; None for a CPU.
        """
        for number, one in _PACKAGES.items():
            if one.generation == generation and _has_module(one.module):
                version = installed_version(one.name) or "of unknown version"  # a source folder has no metadata
                return cls(number, f"{one.name} {version}")
        return cls()

    def require(self, wanted: int | str) -> None:
        """Check the setting `train.flash_attention`, where this one is the newest.

        Raises:
            UserError: if the wanted version is not installed, or is for other GPUs.
        """
        if wanted in _PACKAGES and wanted != self.version:
            package = _PACKAGES[int(wanted)]
            raise UserError(
                f"train.flash_attention is {wanted}, which needs {package.gpus} GPUs and the package {package.name} on "
                "all of them; install it, or set train.flash_attention to auto"
            )


def use_version(number: int) -> None:
    """Let torch compute flash attention with this version from now on, in the whole process.

    Raises:
        UserError: if its package cannot be loaded.
    """
    from torch.nn.attention import (
        activate_flash_attention_impl,
        current_flash_attention_impl,
        restore_flash_attention_impl,
    )

    wanted = None if number == BUILT_IN else f"FA{number}"
    if current_flash_attention_impl() == wanted:
        return
    if wanted is None:
        restore_flash_attention_impl()
        return
    try:
        activate_flash_attention_impl(wanted)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"FlashAttention {number} cannot be loaded ({one_line(str(error), 200)}); install the package "
            f"{_PACKAGES[number].name}, or set train.flash_attention to auto"
        ) from error


def _has_module(name: str) -> bool:
    """Whether a module is installed; nothing is imported, not even the package around it."""
    package, *rest = name.split(".")
    spec = find_spec(package)
    folders = [Path(folder).joinpath(*rest[:-1]) for folder in (spec and spec.submodule_search_locations) or []]
    return spec is not None and (not rest or any((folder / f"{rest[-1]}.py").exists() for folder in folders))
