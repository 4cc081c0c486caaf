"""NVIDIA GPUs as nvidia-smi tells of them, and whether the installed torch can use them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from launchers.doctor.commands import ask, one_line
from launchers.doctor.finding import Check, Finding
from launchers.local import gpu_count

_FIELDS = {
    "index": "index",
    "name": "name",
    "driver": "driver_version",
    "memory": "memory.total",
    "used": "memory.used",
    "capability": "compute_cap",
    "mig": "mig.mode.current",
    "ecc": "ecc.mode.current",
    "errors": "ecc.errors.uncorrected.volatile.total",
}
OLDEST_CAPABILITY = 7.0  # Triton's
BF16_CAPABILITY = 8.0
_BUSY_SHARE = 0.05


@dataclass(frozen=True)
class Gpu:
    """A GPU, in nvidia-smi's words; memory in MiB."""

    index: str
    name: str
    driver: str
    memory: str
    used: str
    capability: str
    mig: str
    ecc: str
    errors: str


def checks(precision: str | None) -> list[Check]:
    """The GPUs, and torch's build; `precision` is that of the config, if there is one."""
    return [Check("gpu", "gpus", lambda: _gpus(precision), seconds=20), Check("gpu", "torch build", _build, seconds=20)]


def parse_gpus(text: str) -> list[Gpu]:
    """The lines of nvidia-smi's CSV without header and units."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [Gpu(*row) for row in rows if len(row) == len(_FIELDS)]


def judge_gpu(gpu: Gpu, precision: str | None) -> Finding:
    """One GPU: its capability for Triton and for the precision, MIG, ECC, and who else uses it."""
    name = f"gpu {gpu.index}"
    value = f"{gpu.name}, {_number(gpu.memory) / 1024:.0f} GiB, capability {gpu.capability}"
    capability = _number(gpu.capability)
    if _number(gpu.errors) > 0:
        advice = "memory errors that could not be corrected: have the node drained and the GPU reset or replaced"
        return Finding(name, "fail", f"{value}, {gpu.errors} uncorrected ECC errors", advice)
    if capability < OLDEST_CAPABILITY:
        return Finding(name, "fail", value, f"Triton's kernels need capability {OLDEST_CAPABILITY} (Volta) or later")
    if precision == "bf16" and capability < BF16_CAPABILITY:
        advice = f"bf16 needs capability {BF16_CAPABILITY} (Ampere): set train.precision to fp16 or fp32"
        return Finding(name, "fail", value, advice)
    if gpu.mig == "Enabled":
        advice = "NCCL does not join several slices of one GPU: train one process, or have MIG switched off"
        return Finding(name, "warn", f"{value}, cut up by MIG", advice)
    if gpu.ecc == "Disabled":
        return Finding(name, "warn", f"{value}, ECC off", "flipped bits go unseen: nvidia-smi --ecc-config=1, reboot")
    if _number(gpu.used) > _BUSY_SHARE * _number(gpu.memory):
        advice = "another process uses its memory (nvidia-smi names it): wait, or ask for whole nodes"
        return Finding(name, "warn", f"{value}, {_number(gpu.used) / 1024:.1f} GiB taken", advice)
    return Finding(name, "ok", value)


def judge_likeness(gpus: Sequence[Gpu]) -> Finding | None:
    """A warning where the GPUs of this machine are of several kinds."""
    kinds = sorted({gpu.name for gpu in gpus})
    if len(kinds) < 2:
        return None
    advice = "every step takes as long as on the slowest: choose GPUs of one kind by CUDA_VISIBLE_DEVICES"
    return Finding("gpus", "warn", "of several kinds: " + ", ".join(kinds), advice)


def judge_build(build: str | None, driver: str | None, gpus: int) -> Finding:
    """torch's CUDA version (None: built for CPU) against the newest that the driver knows (None: no driver)."""
    value = f"CUDA {build}" if build else "for CPU"
    if driver is None:
        if gpus:
            return Finding(
                "torch build", "warn", f"{value}; nvidia-smi does not answer", "ask whoever runs the machine"
            )
        return Finding("torch build", "ok", f"{value}; this machine has no GPU, training is on the CPU")
    value += f", the driver takes CUDA up to {driver}"
    if build is None:
        advice = "torch would train on the CPU beside idle GPUs: install torch's CUDA build (pytorch.org says how)"
        return Finding("torch build", "fail", value, advice)
    if _major(build) > _major(driver):
        advice = f"update the driver, or install torch built for CUDA {_major(driver)}"
        return Finding("torch build", "fail", value, advice)
    return Finding("torch build", "ok", value)


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch is built for, read from its files; None for a CPU build.

    Raises OSError or PackageNotFoundError where there is no torch.
    """
    text = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))).read_text()
    match = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None


def _gpus(precision: str | None) -> Iterator[Finding]:
    query = f"--query-gpu={','.join(_FIELDS.values())}"
    answer = ask("nvidia-smi", query, "--format=csv,noheader,nounits", seconds=15)
    if answer is None:
        if gpu_count():
            advice = "the driver's tools are missing here: in a container, start it with the GPU runtime"
            yield Finding("gpus", "warn", f"{gpu_count()}, but no nvidia-smi", advice)
        else:
            yield Finding("gpus", "skipped", "no NVIDIA driver on this machine")
        return
    if not answer.works:
        advice = "the driver does not answer: it may have been updated without a reboot, or a GPU has failed (dmesg)"
        yield Finding("gpus", "fail", one_line(answer.text), advice)
        return
    found = parse_gpus(answer.text)
    for driver in sorted({gpu.driver for gpu in found}):
        yield Finding("driver", "ok", driver)
    yield from (judge_gpu(gpu, precision) for gpu in found)
    if unlike := judge_likeness(found):
        yield unlike


def _build() -> Iterator[Finding]:
    answer = ask("nvidia-smi")
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*([\d.]+)", answer.text) if answer and answer.works else None
    try:
        build = torch_cuda()
    except metadata.PackageNotFoundError:
        yield Finding("torch build", "skipped", "torch is not installed")
        return
    yield judge_build(build, match[1] if match else None, gpu_count())


def _number(text: str) -> float:
    """The number, or 0 where nvidia-smi has none ([N/A])."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _major(version: str) -> int:
    return int(version.split(".")[0])
