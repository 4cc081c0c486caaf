"""Checks of `--full`: torch, kernels and DeepSpeed on this machine."""

import os
import time
from collections.abc import Iterator

from launchers.local import Finding, gpu_count, judge


def check_torch() -> Iterator[Finding]:
    """Multiply matrices on each device."""
    import torch

    value, seen = f"torch {torch.__version__}", torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < gpu_count():
        advice = "a run would train on fewer GPUs, or on the CPU: install a torch whose CUDA fits the driver"
        yield Finding("torch runs", "fail", f"{value} sees {seen} of {gpu_count()} GPUs", advice)
        return
    a = torch.randint(-4, 5, (256, 256), generator=torch.Generator().manual_seed(0))
    exact = (a @ a.T).float()  # products of small whole numbers are exact in any precision
    devices = [f"cuda:{number}" for number in range(seen)] or ["cpu"]
    wrong = []
    for device in devices:
        product = a.to(device, torch.bfloat16) @ a.T.to(device, torch.bfloat16)
        if not torch.allclose(product.float().cpu(), exact, rtol=1 / 128):
            wrong.append(device)
    value += f": wrong products on {', '.join(wrong)}" if wrong else f": right products on {', '.join(devices)}"
    yield judge("torch runs", value, (bool(wrong), "fail", "ask the administrator to check these devices"))


def check_triton() -> Iterator[Finding]:
    """Compare three kernels with plain torch: in fp32, with products in bf16, and with fp64."""
    if not gpu_count():
        yield Finding("triton runs", "skipped", "no GPU to run a kernel on")
        return
    import torch

    from pretrain.kernels import PLAIN, Tiles, adamw_difference, operations, rotation

    begin = time.perf_counter()
    generator, slots = torch.Generator().manual_seed(0), torch.arange(128).cuda()
    x, weight = (torch.randn(64, 64, generator=generator).cuda() for _ in range(2))
    qkv = torch.randn(128, 96, generator=generator).cuda().bfloat16()
    turns, tiles = rotation(slots, 32, 10_000.0, qkv.dtype), Tiles.of(torch.tensor([0, 128]).int().cuda(), 128)
    parts = PLAIN.rotate_heads(qkv.float(), (1, 1, 1), 2, (turns[0].float(), turns[1].float()))
    q, k, v = (part.transpose(0, 1) for part in parts)
    near = (slots[:, None] - slots).abs() <= 64
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(0, 1)
    fused = operations(fused=True)
    assert fused.window_attention
    assert fused.adamw
    errors = {
        "GELU": float((fused.linear_gelu(x, weight, None) - PLAIN.linear_gelu(x, weight, None)).abs().max()),
        "attention in bf16": float((fused.window_attention(qkv, 1, turns, tiles, 64) - attended).abs().max()),
        "AdamW": adamw_difference(fused.adamw, torch.bfloat16, "cuda"),
    }
    said = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    value = f"kernels in {time.perf_counter() - begin:.1f} s, from plain torch: {said}"
    wrong = not all(error < (0.03 if "bf16" in name else 1e-3) for name, error in errors.items())
    advice = "set train.fused_kernels to false, and report versions and GPU"
    yield judge("triton runs", value, (wrong, "fail", advice))


def check_deepspeed() -> Iterator[Finding]:
    """Import DeepSpeed."""
    if not gpu_count():
        os.environ["DS_ACCELERATOR"] = "cpu"
    begin = time.perf_counter()
    from pretrain.engine import import_deepspeed

    deepspeed = import_deepspeed()
    value = f"deepspeed {deepspeed.__version__} imported in {time.perf_counter() - begin:.1f} s"
    yield Finding("deepspeed imports", "ok", value)
