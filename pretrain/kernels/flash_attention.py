"""Versions of flash attention over documents (`varlen`): which are installed, and their use. Does not import torch.

torch has version 2 (Dao, "FlashAttention-2", 2023). Packages bring version 3 for Hopper (Shah et al.,
"FlashAttention-3", 2024) and version 4 for Blackwell. torch then gives them all calls of its `varlen_attn` in the
process. Both are young, so a run compares them with version 2 before it uses them.
"""

from importlib.util import find_spec
from typing import NamedTuple

from data_prep.common.errors import UserError, one_line
from data_prep.common.packages import installed_version

BUILT_IN = 2  # the version in torch


class _Package(NamedTuple):
    """The package of a newer version, and the GPUs it is for.

    Version 4 on Hopper has no windows, no backward pass for small heads, and no gain over version 3.

    generation: the major number of the GPUs' compute capability.
    module: its own module. It shows that there is a build from source, which has no metadata.
    """

    name: str
    generation: int
    gpus: str
    module: str | None = None

    @property
    def version(self) -> str | None:
        """The installed version; None if it is not installed. Nothing is imported."""
        built = self.module is not None and find_spec(self.module) is not None
        return installed_version(self.name) or ("of unknown version" if built else None)


_PACKAGES = {
    3: _Package("flash_attn_3", 9, "Hopper", "flash_attn_interface"),
    4: _Package("flash-attn-4", 10, "Blackwell"),  # its module lies in a package that others share
}


class FlashAttention(NamedTuple):
    """A version of flash attention, and name and version of the package that brings it; empty for torch's own."""

    version: int = BUILT_IN
    package: str = ""

    @classmethod
    def installed(cls, generation: int | None) -> "FlashAttention":
        """The newest one for these GPUs. generation: as in _Package; None for a CPU."""
        for number, package in _PACKAGES.items():
            if package.generation == generation and (version := package.version):
                return cls(number, f"{package.name} {version}")
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
