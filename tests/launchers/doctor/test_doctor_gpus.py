"""Doctor checks of GPUs."""

import dataclasses

import pytest

from launchers.doctor import gpu_checks
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


def test_older_gpus_train_in_fp16():
    assert status(gpu_checks.judge_gpu(gpu(capability="7.5"), "fp16")) == "ok"
    assert gpu_checks.parse_gpus("No devices were found\n") == []
