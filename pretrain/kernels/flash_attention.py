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


class _Newer(NamedTuple):
    """A newer version: its package, and the GPUs that it is for.

    generations: the major numbers of the GPUs' compute capability.
    install: how to install the package, in words.
    module: its own module. It shows that there is a build without metadata, or from another package.
    """

    package: str
    generations: tuple[int, ...]
    gpus: str
    install: str
    module: str | None = None

    @property
    def installed(self) -> str | None:
        """Name and version of the installed package; None if it is not installed. Nothing is imported."""
        built = self.module is not None and find_spec(self.module) is not None
        version = installed_version(self.package) or ("of unknown version" if built else None)
        return version and f"{self.package} {version}"


_INSTALL_3 = "install flash-attn-3 from https://download.pytorch.org/whl/cu128 (or cu126, cu130: the CUDA of torch)"
_NEWER = {  # `auto` takes the first that is installed
    3: _Newer("flash_attn_3", (9,), "Hopper", _INSTALL_3, "flash_attn_interface"),
    # Its module lies in a package that others share.
    4: _Newer("flash-attn-4", (9, 10), "Hopper or Blackwell", "install flash-attn-4"),
}


class FlashAttention(NamedTuple):
    """A version of flash attention, and name and version of the package that brings it; empty for torch's own."""

    version: int = BUILT_IN
    package: str = ""

    @classmethod
    def installed(cls, generation: int | None, wanted: int | str = "auto") -> "FlashAttention":
        """The one to use on these GPUs, as torch's if no newer one is installed.

        Args:
            generation: as in _Newer; None for a CPU.
            wanted: the setting `train.flash_attention`.
        """
        for number, newer in _NEWER.items():
            if wanted in ("auto", number) and generation in newer.generations and (package := newer.installed):
                return cls(number, package)
        return cls()

    def require(self, wanted: int | str) -> None:
        """Check that this is the version of the setting `train.flash_attention`.

        Raises UserError if the wanted version is not installed, or is for other GPUs.
        """
        if wanted in _NEWER and wanted != self.version:
            newer = _NEWER[int(wanted)]
            raise UserError(
                f"train.flash_attention is {wanted}, which needs {newer.gpus} GPUs and the package {newer.package} on "
                f"all of them; {newer.install}, or set train.flash_attention to auto"
            )


def use_version(number: int) -> None:
    """Let torch compute flash attention with this version from now on, in the whole process.

    Raises UserError if its package cannot be loaded, or computes no gradients, as builds for inference do not.
    """
    from torch.nn import attention

    wanted = None if number == BUILT_IN else f"FA{number}"
    active = attention.current_flash_attention_impl()
    if active and active != wanted:
        attention.restore_flash_attention_impl()
    if wanted is None or active == wanted:
        return
    problem = "cannot be loaded"
    try:
        attention.activate_flash_attention_impl(wanted)
        problem = "computes no gradients"
        from pretrain.kernels.merged_attention import compute_one_gradient

        compute_one_gradient()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        if attention.current_flash_attention_impl():
            attention.restore_flash_attention_impl()
        raise UserError(
            f"FlashAttention {number} {problem} ({one_line(str(error), 200)}); {_NEWER[number].install}, "
            "or set train.flash_attention to auto"
        ) from error
