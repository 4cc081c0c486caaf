"""What the GPUs of this machine do, by NVIDIA's management library (NVML), which asks the driver and no stream."""

import os
from collections.abc import Callable
from typing import Any

import torch


class GpuSampler:
    """Those GPUs that this process may see, numbered as PyTorch numbers them; `gpu0_power_watts` and so on.

    Without a GPU, or without the package nvidia-ml-py (which `problem` then says), it samples nothing; what a GPU does
    not tell, as some virtual ones do not, is left out.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._handles: list[Any] = []
        if torch.cuda.is_available():
            self._open()

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError:
            self.problem = "no figures of GPUs, as the package nvidia-ml-py is missing; install it with pip"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = [self._handle(name) for name in visible(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self.problem = f"no figures of GPUs ({error})"

    def __call__(self) -> dict[str, float]:
        return {
            f"gpu{number}_{name}": value for number, gpu in enumerate(self._handles) for name, value in self._of(gpu)
        }

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _of(self, gpu: Any) -> list[tuple[str, float]]:
        nvml = self._nvml
        asked: dict[str, Callable[[], float]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "memory_percent": lambda: _used_percent(nvml.nvmlDeviceGetMemoryInfo(gpu)),
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        }
        found = []
        for name, ask in asked.items():
            try:
                found.append((name, float(ask())))
            except nvml.NVMLError:
                continue
        return found


def visible(count: int) -> list[str]:
    """Those of a machine's `count` GPUs that CUDA_VISIBLE_DEVICES leaves: indices or UUIDs; after an invalid one none,
    as CUDA has it."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [str(number) for number in range(count)]
    found = []
    for name in (part.strip() for part in wanted.split(",")):
        if not name.startswith(("GPU-", "MIG-")) and not (name.isdigit() and int(name) < count):
            break
        found.append(name)
    return found


def _used_percent(memory: Any) -> float:
    return 100 * memory.used / memory.total
