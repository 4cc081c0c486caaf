"""How a run computes attention, and the reason where it is not flash attention."""

import pytest
import torch

from pretrain.kernels import ComputeBackends, FastPath, KernelChoice
from pretrain.kernels.backend_choice import attention_fallback, fastest_attention
from tests.support.configs import least_config

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.mark.parametrize(
    ("values", "reason", "advice"),
    [
        (("cuda", "bf16", 64, 0.0), None, None),
        (("cuda", "fp16", 64, 0.0), None, None),
        (("cpu", "fp32", 20, 0.1), "the device is cpu, not cuda", ""),
        (("cuda", "fp32", 64, 0.0), "train.precision is fp32", "set train.precision to bf16 or fp16"),
        (("cuda", "bf16", 64, 0.1), "model.dropout is 0.1", "set model.dropout to 0"),
        (("cuda", "bf16", 20, 0.0), "heads have 20 dimensions, not a multiple of 8", "hidden / heads"),
        (
            ("cuda", "fp32", 64, 0.1),
            "train.precision is fp32; model.dropout is 0.1",
            "set train.precision to bf16 or fp16; set model.dropout to 0",
        ),
    ],
)
def test_a_fallback_says_all_reasons_and_what_to_change(values, reason, advice):
    fallback = attention_fallback(*values)
    if reason is None:
        assert fallback is None
    else:
        assert fallback.reason == reason
        assert advice in fallback.advice
        assert bool(advice) == bool(fallback.advice)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model", [{}, {"dropout": 0.1}, {"size": {"layers": 1, "hidden": 60, "heads": 3}}])
def test_the_encoder_computes_what_the_run_reports(precision, device, model):
    reported = ComputeBackends.of(least_config(train={"precision": precision}, model=model), device)
    size = model.get("size", {"hidden": 256, "heads": 4})
    per_head = size["hidden"] // size["heads"]
    used = fastest_attention(device, str(PRECISIONS[precision]), per_head, model.get("dropout", 0.0))
    assert reported.attention == used
    fast = device == "cuda" and precision != "fp32" and not model
    assert used == ("varlen" if fast else "sdpa")


PLAIN = {"train": {"precision": "bf16", "fused_kernels": False, "compile": False}}
FP32 = {"train": PLAIN["train"] | {"precision": "fp32"}}
VARLEN = "attention varlen"
ON_CPU = "attention sdpa (the device is cpu, not cuda), kernels"
AGREES = KernelChoice(FastPath(True, True, 3), "agrees on 4 rows")


@pytest.mark.parametrize(
    ("sections", "device", "choice", "line"),
    [
        (PLAIN, "cuda", None, f"{VARLEN} (flash attention), kernels plain"),
        (PLAIN, "cuda", KernelChoice(FastPath(False, False)), f"{VARLEN} (FlashAttention 2), kernels plain"),
        (
            {},
            "cuda",
            None,
            f"{VARLEN} (flash attention), kernels auto (the trial step compares Triton with plain)",
        ),
        ({}, "cuda", AGREES, f"{VARLEN} (FlashAttention 3), kernels Triton and compiled (agrees on 4 rows)"),
        ({}, "cpu", None, f"{ON_CPU} plain (no GPU)"),
        ({"train": {"compile": True, "fused_kernels": False}}, "cpu", None, f"{ON_CPU} compiled"),
        (FP32 | {"model": {"dropout": 0.1}}, "cpu", None, f"{ON_CPU} plain"),
        (
            FP32 | {"model": {"dropout": 0.1}},
            "cuda",
            None,
            "warning: attention sdpa (train.precision is fp32; model.dropout is 0.1), kernels plain; "
            "for flash attention, set train.precision to bf16 or fp16; set model.dropout to 0",
        ),
        (
            FP32 | {"model": {"arch": "auto", "config": {"model_type": "bert"}}},
            "cuda",
            None,
            "attention transformers, kernels plain",
        ),
    ],
)
def test_a_start_says_what_computes_why_and_what_to_change(sections, device, choice, line):
    assert ComputeBackends.of(least_config(**sections), device, choice=choice).start_line == line


def test_the_record_of_a_run():
    assert ComputeBackends.of(least_config(**PLAIN), "cuda").as_values() == {"attention": "varlen", "kernels": "plain"}
    reasons = {"attention_reason": "the device is cpu, not cuda", "kernels_reason": "no GPU"}
    assert ComputeBackends.of(least_config(), "cpu").as_values() == {"attention": "sdpa", "kernels": "plain", **reasons}
    chosen = ComputeBackends.of(least_config(), "cuda", choice=AGREES).as_values()
    assert chosen.items() >= {"attention": "varlen", "flash_attention": 3}.items()
    assert "flash_attention" not in ComputeBackends.of(least_config(), "cpu", choice=AGREES).as_values()
