"""Checks of NVIDIA GPUs with nvidia-smi."""

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.common.errors import UserError, one_line
from data_prep.common.processes import ask_program
from launchers.local import Finding, gpu_count, judge
from pretrain.config import Config
from pretrain.kernels import ComputeBackends, FlashAttention

_FIELDS = "index,name,driver_version,memory.total,memory.used,compute_cap,mig.mode.current"
_FIELDS += ",ecc.errors.uncorrected.volatile.total"
_OLDEST_CAPABILITY = 7.0  # Triton's
_BF16_CAPABILITY = 8.0
_BUSY_SHARE = 0.05


@dataclass(frozen=True)
class Gpu:
    """A GPU as reported by nvidia-smi (_FIELDS); memory in MiB."""

    index: str
    name: str
    driver: str
    memory: str
    used: str
    capability: str
    mig: str
    errors: str

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bf16: from Ampere on."""
        return _number(self.capability) >= _BF16_CAPABILITY


def list_gpus() -> list[Gpu] | str | None:
    """The GPUs of this machine; the message of nvidia-smi if it fails; None if it is not installed."""
    answer = ask_program("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits", seconds=15)
    if answer is None or not answer.works:
        return one_line(answer.text, 200) if answer else None
    return parse_gpus(answer.text)


def parse_gpus(text: str) -> list[Gpu]:
    """Parse nvidia-smi's CSV output without header and units."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [Gpu(*row) for row in rows if len(row) == _FIELDS.count(",") + 1]


def judge_gpu(gpu: Gpu, precision: str | None) -> Finding:
    """Judge one GPU: capability for Triton and the precision, MIG, memory errors, and use by other processes."""
    memory, used, capability, errors = map(_number, (gpu.memory, gpu.used, gpu.capability, gpu.errors))
    value = f"{gpu.name}, {memory / 1024:.0f} GiB ({used / 1024:.1f} used), capability {gpu.capability}"
    value += f", {gpu.errors} uncorrected memory errors" if errors else ""
    value += ", divided by MIG" if gpu.mig == "Enabled" else ""
    old = f"Triton's kernels need capability {_OLDEST_CAPABILITY} (Volta) or later"
    no_bf16 = f"bf16 needs capability {_BF16_CAPABILITY} (Ampere): set train.precision to fp16 or fp32"
    mig = "NCCL does not join several slices of one GPU: train one process, or have MIG switched off"
    return judge(
        f"gpu {gpu.index}",
        value,
        (errors > 0, "fail", "have the node drained and the GPU reset or replaced"),
        (capability < _OLDEST_CAPABILITY, "fail", old),
        (precision == "bf16" and not gpu.has_bf16, "fail", no_bf16),
        (gpu.mig == "Enabled", "warn", mig),
        (used > _BUSY_SHARE * memory, "warn", "another process uses its memory: wait, or ask for whole nodes"),
    )


def check_gpus(precision: str | None) -> Iterator[Finding]:
    """Check the GPUs of this machine. `precision` comes from the config, if there is one."""
    gpus = list_gpus()
    if gpus is None:
        advice = "the driver's tools are missing here: in a container, start it with the GPU runtime"
        missing = Finding("gpus", "skipped", "no NVIDIA driver on this machine")
        yield Finding("gpus", "warn", f"{gpu_count()}, but no nvidia-smi", advice) if gpu_count() else missing
    elif isinstance(gpus, str):
        advice = "the driver does not answer: reboot after an update of it, or look for a failed GPU with dmesg"
        yield Finding("gpus", "fail", gpus, advice)
    else:
        yield from (judge_gpu(gpu, precision) for gpu in gpus)
        kinds = sorted({gpu.name for gpu in gpus})
        value = f"{len(gpus)} of driver {gpus[0].driver}: {', '.join(kinds)}" if gpus else "none"
        advice = "every step waits for the slowest GPU: choose GPUs of one kind with CUDA_VISIBLE_DEVICES"
        yield judge("gpus", value, (len(kinds) > 1, "warn", advice))


def judge_attention(config: Config, device: str, generation: int | None) -> Finding:
    """Judge attention and kernels of a run: a warning if there is something to change for flash attention.

    It fails if the version in the config is not installed, or is for other GPUs.

    Args:
        generation: the major number of the GPU's compute capability; None without a GPU, or if it is not known.
    """
    backends, missing = ComputeBackends.of(config, device), ""
    wanted = config.train.flash_attention
    try:
        if generation or device == "cpu":
            FlashAttention.installed(generation, wanted).require(wanted)
    except UserError as error:
        missing = str(error)
    value = str(backends).removeprefix("attention ")
    return judge("attention", value, (bool(missing), "fail", missing), (bool(backends.advice), "warn", backends.advice))


def check_attention(config: Config) -> Iterator[Finding]:
    """Check attention and kernels of a run on this machine, without importing torch."""
    gpus = list_gpus() if gpu_count() else None
    generation = int(_number(gpus[0].capability)) if isinstance(gpus, list) and gpus else None
    yield judge_attention(config, "cuda" if gpu_count() else "cpu", generation)


def _number(text: str) -> float:
    """The number, or 0 for [N/A]."""
    try:
        return float(text)
    except ValueError:
        return 0.0
