"""Doctor checks of GPUs."""

import dataclasses

import pytest

from launchers.doctor import gpu_checks
from pretrain.config import Config
from pretrain.model import ComputeBackends
from tests.support.doctor import status

GPU = "0, NVIDIA H200, 580.65.06, 143771, 4, 9.0, Disabled, 0"


def gpu(**changes: str) -> gpu_checks.Gpu:
    return dataclasses.replace(gpu_checks.parse_gpus(GPU)[0], **changes)


@pytest.mark.parametrize(
    "changes,expected",
    [
        ({}, "ok"),
        ({"errors": "2"}, "fail"),
        ({"errors": "[N/A]"}, "ok"),
        ({"capability": "6.1"}, "fail"),
        ({"capability": "7.5"}, "fail"),
        ({"mig": "Enabled"}, "warn"),
        ({"mig": "[N/A]"}, "ok"),
        ({"used": "60000"}, "warn"),
    ],
)
def test_gpus(changes, expected):
    assert status(gpu_checks.judge_gpu(gpu(**changes), "bf16")) == expected


@pytest.mark.parametrize("capability,expected", [("7.5", False), ("8.0", True), ("9.0", True)])
def test_bf16_needs_ampere(capability, expected):
    assert gpu(capability=capability).has_bf16 is expected


DROPOUT = {"model": {"dropout": 0.1}}
FP32 = {"train": {"steps": 1, "precision": "fp32", "fused_kernels": True, "compile": False}}
COMPARED = "the trial step compares Triton with plain"


@pytest.mark.parametrize(
    ("sections", "device", "expected", "advice", "kernels"),
    [
        ({}, "cuda", "ok", "", f"auto ({COMPARED})"),
        (
            DROPOUT,
            "cuda",
            "warn",
            "for flash attention, set model.dropout to 0",
            "auto (the trial step compares Triton",
        ),
        (FP32, "cuda", "warn", "set train.precision to bf16 or fp16", "Triton"),
        (DROPOUT, "cpu", "ok", "", "plain (no GPU)"),
        ({"model": {"arch": "auto", "config": {"model_type": "bert"}}}, "cuda", "ok", "", "plain (model.arch is auto)"),
    ],
)
def test_slow_attention_on_a_gpu_is_a_warning(sections, device, expected, advice, kernels):
    required = {"run": {"dir": "run"}, "data": {"train": "unused"}, "train": {"steps": 1}}
    backends = ComputeBackends.of(Config.model_validate(required | sections), device, window=True)
    finding = gpu_checks.judge_attention(backends)
    assert status(finding) == expected
    assert advice in finding.advice
    assert f", kernels {kernels}" in finding.value


def test_older_gpus_train_in_fp16():
    assert status(gpu_checks.judge_gpu(gpu(capability="7.5"), "fp16")) == "ok"
    assert gpu_checks.parse_gpus("No devices were found\n") == []
