"""The checks of `--full`: torch, kernels, DeepSpeed and tokenizers do here what a run will ask of them."""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.remote import is_url
from launchers.doctor.datasets import locations
from launchers.doctor.finding import Check, Finding
from launchers.local import gpu_count
from pretrain.config import Config

_TEXTS = ["The ship sailed across the sea.", "Ein Über-Ärgernis, 42 %!", "naïve café  déjà\tvu", "數學 и математика 🙂"]


def checks(config: Config | None) -> list[Check]:
    """Import torch, run a kernel, import DeepSpeed, and compare tokenizers."""
    found = [
        Check("full", "torch runs", _torch, seconds=120),
        Check("full", "triton runs", _triton, seconds=300),
        Check("full", "deepspeed imports", _deepspeed, seconds=120),
    ]
    for name, location in locations(config).items() if config else ():
        if not is_url(location):
            look = partial(_tokenizer, f"{name}: tokenizer", Path(location) / "tokenizer")
            found.append(Check("full", f"{name}: tokenizer", look, seconds=120))
    return found


def judge_architecture(name: str, capability: tuple[int, int], built: list[str]) -> Finding | None:
    """A failure where torch's build has no code for a GPU: neither of its own generation nor to be compiled."""
    major, minor = capability
    numbers = [(kind, int(number.rstrip("af"))) for kind, _, number in (one.partition("_") for one in built) if number]
    fits = any(kind == "sm" and n // 10 == major and n % 10 <= minor for kind, n in numbers)
    if fits or any(kind == "compute" and n <= 10 * major + minor for kind, n in numbers):
        return None
    advice = "install a torch whose CUDA build knows this GPU (pytorch.org says which)"
    return Finding("torch runs", "fail", f"{name} is sm_{major}{minor}, torch is built for {' '.join(built)}", advice)


def _torch() -> Iterator[Finding]:
    begin = time.perf_counter()
    import torch

    value = f"torch {torch.__version__} imported in {time.perf_counter() - begin:.1f} s"
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < gpu_count():
        advice = "a run would train on fewer GPUs, or on the CPU: see the lines `driver` and `torch build`"
        yield Finding("torch runs", "fail", f"{value}; it sees {there} of {gpu_count()} GPUs", advice)
        return
    for number in range(there):
        problem = judge_architecture(
            torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number), torch.cuda.get_arch_list()
        )
        if problem:
            yield problem
            return
    for device in [f"cuda:{number}" for number in range(there)] or ["cpu"]:
        _multiply(torch, device)
    yield Finding("torch runs", "ok", f"{value}; right products on {f'{there} GPUs' if there else 'the CPU'}")


def _multiply(torch: Any, device: str) -> None:
    """Multiply small whole numbers, which is exact in any precision; raises where the result is wrong."""
    a = torch.randint(-4, 5, (256, 256), generator=torch.Generator().manual_seed(0))
    found = (a.to(device, torch.bfloat16) @ a.T.to(device, torch.bfloat16)).float().cpu()
    if not torch.allclose(found, (a @ a.T).float(), rtol=1 / 128):
        raise RuntimeError(f"a product of two matrices on {device} is wrong")


def _triton() -> Iterator[Finding]:
    if not gpu_count():
        yield Finding("triton runs", "skipped", "no GPU to run a kernel on")
        return
    import torch

    from pretrain.kernels import activation, plain

    begin = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(64, 64, generator=generator).cuda() for _ in range(2))
    found, expected = activation.linear_gelu(x, weight, None), plain.linear_gelu(x, weight, None)
    error = float((found - expected).abs().max())
    value = f"a kernel in {time.perf_counter() - begin:.1f} s, {error:.1e} from plain torch"
    wrong = not error < 1e-3
    advice = "set train.fused_kernels to false, and report versions and GPU" if wrong else ""
    yield Finding("triton runs", "fail" if wrong else "ok", value, advice)


def _deepspeed() -> Iterator[Finding]:
    if not gpu_count():
        os.environ["DS_ACCELERATOR"] = "cpu"
    begin = time.perf_counter()
    from pretrain.lean_imports import import_deepspeed

    deepspeed = import_deepspeed()
    value = f"deepspeed {deepspeed.__version__} imported in {time.perf_counter() - begin:.1f} s"
    yield Finding("deepspeed imports", "ok", value)


def _tokenizer(name: str, folder: Path) -> Iterator[Finding]:
    from data_prep.encoding.choose import Encoders
    from data_prep.tokenizer import describe, load

    encoder, note = Encoders(load(folder), describe(folder)).choose(_TEXTS)
    value = f"{encoder.name}; {note}" if note else f"{encoder.name}, with the tokenizers library's ids on a probe"
    yield Finding(name, "ok", value)
