"""Utilization, memory, power and temperature of the GPUs, from NVIDIA's management library (NVML) through torch."""

from collections.abc import Callable

import torch

_VALUES: dict[str, Callable[[int], float]] = {
    "utilization_percent": lambda gpu: torch.cuda.utilization(gpu),
    "memory_percent": lambda gpu: (
        100 * torch.cuda.device_memory_used(gpu) / torch.cuda.get_device_properties(gpu).total_memory
    ),
    "power_watts": lambda gpu: torch.cuda.power_draw(gpu) / 1000,
    "temperature_celsius": lambda gpu: torch.cuda.temperature(gpu),
}


class GpuSampler:
    """Sample the visible GPUs, numbered as in PyTorch: `gpu0_power_watts` and so on.

    Values that a GPU does not report, such as some virtual ones, are left out.

    problem: the reason that no GPU can be sampled, such as a missing package nvidia-ml-py; None without a GPU.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self._count and not self():
            try:
                torch.cuda.utilization(0)
            except Exception as error:
                self.problem = f"the GPUs cannot be sampled ({error})"

    def __call__(self) -> dict[str, float]:
        sampled: dict[str, float] = {}
        for gpu in range(self._count):
            for name, read in _VALUES.items():
                try:
                    sampled[f"gpu{gpu}_{name}"] = float(read(gpu))
                except Exception:  # NVML's error classes are in a package that may be missing
                    continue
        return sampled
