"""All Triton kernels of the package, compiled for a GPU that need not be there.

The code that launches them runs with tensors on a CPU; each launch only compiles, with the types, constants and
alignments of a real launch. Use a process of its own that does not interpret Triton, see
tests.support.triton_process.
"""

import re
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import pretrain
from pretrain.kernels import Tiles
from pretrain.kernels.fused import FUSED

_ROOT = Path(pretrain.__file__).parent.parent
_PACKAGES = ("data_prep", "pretrain", "evaluation", "launchers")


class Compiled(NamedTuple):
    """A kernel as compiled for one launch.

    Args:
        threads: of a program.
        code, shared: bytes.
        registers, spilled: of a thread, and bytes of those that lie in memory; 0 unless for NVIDIA.
        product: None if it has no matrix product; else whether warp groups compute all of them, as on Hopper.
    """

    name: str
    threads: int
    code: int
    shared: int
    registers: int
    spilled: int
    product: bool | None


def no_device(target: GPUTarget) -> SimpleNamespace:
    """What a launch asks of Triton's driver until it has compiled."""
    return SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: str(target),
        get_current_stream=lambda device: 0,
    )


def compiled_kernels(backend: str, architecture: int | str, lanes: int) -> list[Compiled]:
    """Compile what models of hidden size 768 and 2,048 launch.

    Args:
        backend: "cuda" or "hip".
        lanes: threads of a warp.
    """
    made: list[Compiled] = []
    run = JITFunction.run

    def compile_only(kernel: JITFunction, *arguments: Any, **options: Any) -> None:
        result = run(kernel, *arguments, **options | {"warmup": True})
        code = result.asm["hsaco" if backend == "hip" else "cubin"]
        threads = result.metadata.num_warps * lanes
        usage = (0, 0) if backend == "hip" else _registers(code)
        product = None
        if "tt.dot" in result.asm["ttir"] and backend == "cuda":
            product = "wgmma.mma_async" in result.asm["ptx"] and "mma.sync" not in result.asm["ptx"]
        made.append(Compiled(_name(kernel), threads, len(code), result.metadata.shared, *usage, product))

    driver.set_active(no_device(GPUTarget(backend, architecture, lanes)))  # until the next call
    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(torch.version, "hip", "7.0" if backend == "hip" else None),
    ):
        for per_head in (32, 64, 128):
            _launch_window_attention(2, per_head, torch.bfloat16)
        _launch_window_attention(2, 128, torch.float16)
        _launch_operations(768, torch.bfloat16)
        _launch_operations(2048, torch.float32)
    return made


def kernels_in_source() -> tuple[set[str], dict[str, set[str]]]:
    """The names of all functions of Triton in the packages, and for each the names that it uses."""
    kernels = dict(_kernels())
    return set(kernels), {name: set(kernel.fn.__code__.co_names) for name, kernel in kernels.items()}


def _kernels() -> Iterator[tuple[str, JITFunction]]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            if "@triton.jit" in path.read_text():
                module = import_module(".".join(path.relative_to(_ROOT).with_suffix("").parts))
                for value in vars(module).values():
                    if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__:
                        yield _name(value), value


def _name(kernel: JITFunction) -> str:
    return f"{kernel.fn.__module__.split('.')[-1]}.{kernel.fn.__name__}"


def _registers(code: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, which has only registers that were spilled."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", printed)
    assert usage, printed
    registers, stack, local = map(int, usage.groups())
    return registers, stack + local


def _launch_window_attention(heads: int, per_head: int, dtype: torch.dtype) -> None:
    """Forward and backward. Other precisions do not use this kernel."""
    angles = torch.zeros(8, 1, per_head // 2, dtype=dtype)
    qkv = torch.zeros(8, 3 * heads * per_head, dtype=dtype, requires_grad=True)
    assert FUSED.window_attention is not None
    tiles = Tiles.of(torch.tensor([0, 8], dtype=torch.int32), 8)
    FUSED.window_attention(qkv, heads, (angles, angles), tiles, 64).sum().backward()


def _launch_operations(hidden: int, dtype: torch.dtype) -> None:
    """Every operation with all its variants, forward and backward."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype).requires_grad_()

    x, weight, bias, wide = numbers(8, hidden), numbers(hidden), numbers(hidden), 4 * hidden
    ids = torch.zeros(8, dtype=torch.int64)
    heads = hidden // 64
    by = (numbers(8, 1, 32), numbers(8, 1, 32))
    results = [
        *FUSED.embed_norm(ids, numbers(64, hidden), ids, numbers(64, hidden), weight, weight, bias, 1e-12),
        *FUSED.embed_norm(ids, numbers(64, hidden), None, None, None, weight, None, 1e-5),
        *FUSED.add_norm(x, x * 1, weight, bias, 1e-12),
        *FUSED.add_norm(x, x * 1, weight, bias, 1e-12, bias),
        *FUSED.add_norm(x, x * 1, weight, bias, 1e-12)[:2],
        *FUSED.add_norm(x, x * 1, weight, None, 1e-5)[1:],
        FUSED.add_norm(x, None, weight, None, 1e-5)[0],
        FUSED.linear_gelu(x, numbers(wide, hidden), numbers(wide)),
        FUSED.linear_gelu(x, numbers(hidden, hidden), None),
        FUSED.geglu(numbers(8, 3 * hidden) * 1),
        *FUSED.rotate_heads(numbers(8, 3 * hidden) * 1, (heads,) * 3, 2, by),
    ]
    torch.autograd.backward(results, [torch.ones_like(part) for part in results])
    flat, count = numbers(16 * hidden).detach(), torch.zeros(())
    for found_inf in (count, None):
        state = {"exp_avg": flat.float(), "exp_avg_sq": flat.float(), "step": count}
        options = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1}
        assert FUSED.adamw is not None
        FUSED.adamw([flat.float()], [flat], [state], [flat], options, found_inf, found_inf)
    for weights in (None, torch.zeros(8)):
        for columns in (50_368, 128):
            FUSED.cross_entropy(numbers(8, columns).detach(), ids, weights, 1e-4, True)
