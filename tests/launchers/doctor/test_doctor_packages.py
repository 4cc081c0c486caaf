"""Doctor checks of packages and compilers."""

import sys

import pytest

from launchers.doctor import package_checks
from launchers.doctor.check_list import checks_of_machine
from pretrain.config import Config
from tests.support.doctor import status


@pytest.mark.parametrize(
    "installed,expected",
    [("2.11.0+cu130", "ok"), ("2.13.5", "ok"), ("2.14.0", "fail"), ("2.10.9", "fail"), (None, "fail")],
)
def test_versions(installed, expected):
    finding = package_checks.judge_version("torch<2.14,>=2.11", installed)
    assert status(finding) == expected
    assert expected == "ok" or "torch<2.14,>=2.11" in finding.advice


def test_python_and_what_is_not_needed():
    assert status(package_checks.judge_python("3.10.1", ">=3.10", "Linux-6")) == "ok"
    assert status(package_checks.judge_python("3.9.18", ">=3.10", "Linux-6")) == "fail"
    assert status(package_checks.judge_python("3.12.1", ">=3.10", "macOS-14")) == "warn"
    triton = "triton<3.8,>=3.6; platform_system == 'Linux' and extra == 'dev'"
    assert package_checks.judge_version(triton, None, needed=False).status == "skipped"
    assert status(package_checks.judge_version(triton, None)) == "fail"
    assert not package_checks.is_always_needed(triton)


def test_a_compiler_is_only_needed_where_the_run_uses_one():
    required = {"run": {"dir": "run"}, "data": {"train": "unused"}, "train": {"steps": 1}}
    plain, compiled = (Config.model_validate(required | {"train": {"steps": 1, "compile": on}}) for on in (False, True))
    assert [package_checks.needs_compiler(config, gpus=0) for config in (None, plain, compiled)] == [False, False, True]
    assert package_checks.needs_compiler(None, gpus=8), "Triton's kernels"


def test_the_compiler_is_checked_only_where_it_is_needed(monkeypatch):
    monkeypatch.setattr("launchers.doctor.check_list.gpu_count", lambda: 0)
    required = {"run": {"dir": "run"}, "data": {"train": "unused"}}
    for on in (False, True):
        config = Config.model_validate(required | {"train": {"steps": 1, "compile": on}})
        assert ("compiler" in {check.name for check in checks_of_machine(config)}) == on


def test_a_compiler_is_found(monkeypatch):
    for program, expected in {sys.executable: "ok", "/no/such/compiler": "fail"}.items():
        monkeypatch.setenv("CXX", program)
        (finding,) = package_checks.check_compiler(gpus=0)
        assert status(finding) == expected
