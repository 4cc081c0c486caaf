"""What `maskwright doctor` thinks of packages, and of what compiles extensions and where."""

import pytest

from launchers.doctor import extensions, packages
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
    assert status(extensions.judge_compiler("g++ 12", True, False)) == "ok"
    assert status(extensions.judge_compiler(None, True, False)) == "warn"
    assert "ninja" in extensions.judge_compiler("g++ 12", False, True).value
    assert status(extensions.judge_folder("deepspeed", tmp_path, True, False, [], [])) == "ok"
    assert "TORCH_EXTENSIONS_DIR" in extensions.judge_folder("deepspeed", tmp_path, False, False, [], []).advice
    unneeded = extensions.judge_folder("deepspeed", tmp_path, False, False, [], [], needed=False)
    assert status(unneeded) == "warn"
    assert "TRITON_CACHE_DIR" in extensions.judge_folder("triton", tmp_path, True, True, [], []).advice
    assert "rm /x/lock" in extensions.judge_folder("deepspeed", tmp_path, True, False, [], ["/x/lock"]).advice
    assert status(extensions.judge_tokenizers({"nanotoken": "0.1"})) == "ok"
    assert extensions.judge_tokenizers({"nanotoken": None}).status == "skipped"


def test_libaio_is_asked_for_where_it_is_needed(tmp_path, monkeypatch):
    names = [check.name for check in extensions.checks()]
    assert [check.name for check in extensions.checks(swaps=True)] == [*names, "libaio"]
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    assert "no g++" in next(extensions._libaio()).value
    for code, expected in ((0, "ok"), (1, "fail")):
        (tmp_path / "c++").write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "c++").chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
        assert status(next(extensions._libaio())) == expected
    monkeypatch.setattr(extensions, "_place", lambda folder: (False, False))
    monkeypatch.setattr(extensions, "gpu_count", lambda: 8)
    for swaps, expected in ((True, "fail"), (False, "warn")):
        (check,) = (one for one in extensions.checks(swaps) if one.name == "deepspeed")
        (found,) = check.look()
        assert found.status == expected, "on GPUs nothing else is compiled for"
