"""Count the GPUs of this machine without importing torch, and explain a GPU that cannot be used."""

import ctypes
import itertools
import os
import re
from importlib.machinery import PathFinder
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import text_or_none

_NVML = "libnvidia-ml.so.1"
_NVIDIA = "0x10de"  # its vendor number on the PCI bus
_DISPLAY_CLASS = "0x03"  # of a GPU on the PCI bus


def gpu_count(root: Path = Path("/"), library: str = _NVML) -> int:
    """Count the GPUs that processes of this machine can use.

    NVML, the library of NVIDIA's driver, counts them. Without it, device files do. WSL2 and many containers have no
    /proc/driver/nvidia, so this folder alone is not enough. If the installed torch is a build for ROCm, the GPUs of AMD
    count instead: the nodes of the driver's topology with a number other than 0, which processors have.

    Args:
        root: the folder of proc, dev and sys.
        library: name or path of NVML.
    """
    if (visible := visible_gpus()) is not None:
        return len(visible)
    if _torch_is_for("hip"):
        return _amd_count(root)
    counted = _nvml_count(library)
    if counted is not None:
        return counted
    return max(len(list(root.glob("proc/driver/nvidia/gpus/*"))), len(list(root.glob("dev/nvidia[0-9]*"))))


def visible_gpus() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names, None if it is not set. CUDA reads it in the same way.

    The list ends at the first word that is neither a number nor the name of a GPU or of a part of one (MIG). So `-1`,
    an empty value, Slurm's `NoDevFiles` and the `none` and `void` of containers hide all GPUs, as does a repeated word.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    first = names[0][:4]
    form = re.escape(first) if first in ("GPU-", "MIG-") else r"\+?[0-9]"
    devices = list(itertools.takewhile(re.compile(form).match, names))
    return devices if len(set(devices)) == len(devices) else []


def check_device(root: Path = Path("/"), library: str = _NVML) -> str:
    """Check that a run uses the GPUs of this machine. Returns a notice for the user, or an empty string.

    Raises UserError if this machine has a GPU that the run cannot use.
    """
    on_cpu = "To train on the CPU, set CUDA_VISIBLE_DEVICES= (empty)."
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        return ""
    if count := gpu_count(root, library):
        if not _torch_is_for("cuda", "hip"):
            raise UserError(f"This machine has {count} GPUs, but torch is a CPU build. Install a CUDA build. {on_cpu}")
        return ""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        words = f"CUDA_VISIBLE_DEVICES is {visible!r} and names no GPU, so the run uses the CPU."
        return "" if visible in ("", "-1") else words
    if sign := _sign_of_gpu(root):
        raise UserError(
            f"This machine has an NVIDIA GPU ({sign}), but its driver does not answer. Correct the driver until "
            f"`nvidia-smi` lists the GPU; a container must be started with its GPUs. {on_cpu}"
        )
    if _torch_is_for("cuda"):
        return "No GPU was found, so the run uses the CPU. If there is one, check that `nvidia-smi` lists it."
    return ""


def _nvml_count(library: str) -> int | None:
    """The number of GPUs that NVML reports; None if there is no working NVML."""
    try:
        nvml = ctypes.CDLL(library)
        count = ctypes.c_uint()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return None
        nvml.nvmlShutdown()
    except (OSError, AttributeError):  # not installed, or not NVML
        return None
    return count.value


def _amd_count(root: Path) -> int:
    if not (root / "dev/kfd").exists():
        return 0
    nodes = root.glob("sys/class/kfd/kfd/topology/nodes/*/gpu_id")
    return sum(text_or_none(node) not in (None, "", "0") for node in nodes)


def _sign_of_gpu(root: Path) -> str | None:
    """A device that only a machine with an NVIDIA GPU has."""
    for name in ("dev/dxg", "dev/nvidiactl"):  # the first one is WSL2's
        if (root / name).exists():
            return f"/{name}"
    for device in sorted(root.glob("sys/bus/pci/devices/*")):
        is_display = (text_or_none(device / "class") or "").startswith(_DISPLAY_CLASS)
        if is_display and text_or_none(device / "vendor") == _NVIDIA:
            return f"PCI device {device.name}"
    return None


def _torch_is_for(*platforms: str) -> bool:
    """Whether the installed torch is a build for cuda or hip (ROCm), from its file of versions."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    versions = text_or_none(Path(spec.origin).with_name("version.py")) or ""
    return bool(re.search(rf"(?m)^({'|'.join(platforms)})\b.*= '", versions))
