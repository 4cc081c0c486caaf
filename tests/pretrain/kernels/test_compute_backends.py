"""How a run computes attention, and the reason where it is not flash attention."""

import pytest
import torch

from pretrain.config import Config
from pretrain.kernels import ComputeBackends, FastPath, KernelChoice
from pretrain.kernels.backend_choice import attention_fallback, fastest_attention

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def config(**sections: dict) -> Config:
    required = {"run": {"dir": "run"}, "data": {"train": "unused"}, "train": {"steps": 1}}
    return Config.model_validate(required | sections | {"train": {"steps": 1} | sections.get("train", {})})


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
    reported = ComputeBackends.of(config(train={"precision": precision}, model=model), device)
    size = model.get("size", {"hidden": 256, "heads": 4})
    per_head = size["hidden"] // size["heads"]
    used = fastest_attention(device, str(PRECISIONS[precision]), per_head, model.get("dropout", 0.0))
    assert reported.attention == used
    fast = device == "cuda" and precision != "fp32" and not model
    assert used == ("varlen" if fast else "sdpa")


def test_a_run_reports_attention_and_kernels():
    bf16 = config(train={"fused_kernels": False, "compile": False})
    fp32 = config(train={"precision": "fp32", "fused_kernels": True, "compile": False})
    assert str(ComputeBackends.of(bf16, "cuda")) == "attention varlen (flash attention), kernels plain"
    assert ComputeBackends.of(bf16, "cuda").as_values() == {"attention": "varlen", "kernels": "plain"}
    assert str(ComputeBackends.of(fp32, "cuda")) == "attention sdpa (train.precision is fp32), kernels Triton"
    compiled = ComputeBackends.of(config(train={"compile": True, "fused_kernels": False}), "cpu")
    assert compiled.as_values() == {
        "attention": "sdpa",
        "attention_reason": "the device is cpu, not cuda",
        "kernels": "compiled",
    }


def test_a_run_reports_what_was_chosen_and_why():
    assert ComputeBackends.of(config(), "cpu").as_values() == {
        "attention": "sdpa",
        "attention_reason": "the device is cpu, not cuda",
        "kernels": "plain",
        "kernels_reason": "no GPU",
    }
    assert str(ComputeBackends.of(config(), "cuda")) == (
        "attention varlen (flash attention), kernels auto (the trial step compares Triton with plain)"
    )
    choice = KernelChoice(FastPath(True, True, 3), "agrees with the plain step on 4 rows")
    chosen = ComputeBackends.of(config(), "cuda", choice=choice)
    assert str(chosen) == (
        "attention varlen (FlashAttention 3), kernels Triton and compiled (agrees with the plain step on 4 rows)"
    )
    assert chosen.as_values().items() >= {"attention": "varlen", "flash_attention": 3}.items()
    assert "flash_attention" not in ComputeBackends.of(config(), "cpu", choice=choice).as_values()


def test_a_start_warns_where_other_settings_allow_flash_attention():
    slow = config(train={"precision": "fp32"}, model={"dropout": 0.1})
    slow = slow.model_copy(update={"train": slow.train.model_copy(update={"fused_kernels": False, "compile": False})})
    assert ComputeBackends.of(slow, "cuda").start_line == (
        "warning: attention sdpa (train.precision is fp32; model.dropout is 0.1), kernels plain; "
        "for flash attention, set train.precision to bf16 or fp16; set model.dropout to 0"
    )
    assert ComputeBackends.of(slow, "cpu").start_line == "attention sdpa (the device is cpu, not cuda), kernels plain"
    plain = config(train={"fused_kernels": False, "compile": False})
    choice = KernelChoice(FastPath(False, False))
    assert ComputeBackends.of(plain, "cuda", choice=choice).start_line == (
        "attention varlen (FlashAttention 2), kernels plain"
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_models_of_transformers_have_their_own_attention(device):
    auto = config(model={"arch": "auto", "config": {"model_type": "bert"}}, train={"precision": "fp32"})
    assert str(ComputeBackends.of(auto, device)).startswith("attention transformers, kernels plain (")
    assert not ComputeBackends.of(auto, device).advice
