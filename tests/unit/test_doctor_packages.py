"""What `maskwright doctor` thinks of packages, and of what compiles extensions and where."""

from typing import Any

import pytest

from launchers.doctor import extensions, packages
from pretrain.config import Config
from tests.support.doctor import status


@pytest.mark.parametrize(
    "installed,expected",
    [("2.11.0+cu130", "ok"), ("2.13.5", "ok"), ("2.14.0", "fail"), ("2.10.9", "fail"), (None, "fail")],
)
def test_versions(installed, expected):
    finding = packages.judge_version("torch<2.14,>=2.11", installed)
    assert status(finding) == expected
    assert expected == "ok" or "torch<2.14,>=2.11" in finding.advice


def test_python_and_what_is_not_needed():
    assert status(packages.judge_python("3.10.1", ">=3.10", "Linux-6")) == "ok"
    assert status(packages.judge_python("3.9.18", ">=3.10", "Linux-6")) == "fail"
    assert status(packages.judge_python("3.12.1", ">=3.10", "macOS-14")) == "warn"
    triton = "triton<3.8,>=3.6; platform_system == 'Linux' and extra == 'dev'"
    assert packages.judge_version(triton, None, needed=False).status == "skipped"
    assert status(packages.judge_version(triton, None)) == "fail"
    assert not packages._always(triton)


def test_extensions(tmp_path):
    assert status(extensions.judge_compiler("g++ 12")) == "ok"
    assert status(extensions.judge_compiler(None)) == "fail"
    assert status(extensions.judge_kernel_folder(tmp_path, True, False, 0)) == "ok"
    assert status(extensions.judge_kernel_folder(tmp_path, False, False, 0)) == "fail"
    assert "TRITON_CACHE_DIR" in extensions.judge_kernel_folder(tmp_path, True, True, 3).advice
    assert status(extensions.judge_tokenizers({"nanotoken": "0.1"})) == "ok"
    assert extensions.judge_tokenizers({"nanotoken": None}).status == "skipped"


def settings(**sections: Any) -> Config:
    """A config with these sections."""
    required = {"run": {"dir": "run"}, "data": {"train": "unused"}, "train": {"steps": 1}}
    return Config.model_validate(required | sections)


def names(config: Config | None) -> set[str]:
    """The names of the checks of extensions."""
    return {check.name for check in extensions.checks(config)}


def test_compilers_are_looked_for_only_where_the_run_uses_one(monkeypatch):
    compiles = settings(train={"steps": 1, "compile": True})
    monkeypatch.setattr(extensions, "gpu_count", lambda: 0)
    assert names(None) == names(settings()) == {"triton", "tokenizers"}
    assert names(compiles) == {"triton", "tokenizers", "compiler"}
    monkeypatch.setattr(extensions, "gpu_count", lambda: 8)
    assert names(compiles) == {"triton", "tokenizers"}
