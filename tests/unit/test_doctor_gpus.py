"""What `maskwright doctor` thinks of GPUs, and of a torch built for them."""

import dataclasses

import pytest

from launchers.doctor import gpus, heavy
from tests.support.doctor import status

GPU = "0, NVIDIA H200, 580.65.06, 143771, 4, 9.0, Disabled, Enabled, 0"


def gpu(**changes: str) -> gpus.Gpu:
    return dataclasses.replace(gpus.parse_gpus(GPU)[0], **changes)


@pytest.mark.parametrize(
    "changes,expected",
    [
        ({}, "ok"),
        ({"errors": "2"}, "fail"),
        ({"errors": "[N/A]"}, "ok"),
        ({"capability": "6.1"}, "fail"),
        ({"capability": "7.5"}, "fail"),
        ({"mig": "Enabled"}, "warn"),
        ({"mig": "[N/A]", "ecc": "[N/A]"}, "ok"),
        ({"ecc": "Disabled"}, "warn"),
        ({"used": "60000"}, "warn"),
    ],
)
def test_gpus(changes, expected):
    assert status(gpus.judge_gpu(gpu(**changes), "bf16")) == expected


def test_older_gpus_train_in_fp16_and_kinds_are_compared():
    assert status(gpus.judge_gpu(gpu(capability="7.5"), "fp16")) == "ok"
    assert gpus.judge_likeness([gpu(), gpu()]) is None
    assert "A100, NVIDIA H200" in gpus.judge_likeness([gpu(), gpu(name="A100")]).value
    assert gpus.parse_gpus("No devices were found\n") == []


@pytest.mark.parametrize(
    "build,driver,count,expected",
    [
        ("13.0", "13.0", 8, "ok"),
        ("12.8", "12.2", 8, "ok"),
        ("12.8", "13.0", 8, "ok"),
        ("13.0", "12.9", 8, "fail"),
        (None, "13.0", 8, "fail"),
        (None, None, 0, "ok"),
        ("13.0", None, 0, "ok"),
        ("13.0", None, 2, "warn"),
    ],
)
def test_torch_against_the_driver(build, driver, count, expected):
    assert status(gpus.judge_build(build, driver, count)) == expected


def test_code_for_a_gpu():
    built = ["sm_80", "sm_90a", "sm_100", "compute_100"]
    for capability in ((8, 0), (8, 6), (9, 0), (10, 0), (12, 0)):
        assert heavy.judge_architecture("H200", capability, built) is None, capability
    assert status(heavy.judge_architecture("V100", (7, 0), built)) == "fail"
    assert status(heavy.judge_architecture("B200", (10, 0), ["sm_90"])) == "fail"
    assert status(heavy.judge_architecture("A100", (8, 0), ["sm_86"])) == "fail"
