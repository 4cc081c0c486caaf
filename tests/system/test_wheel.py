"""The wheel: its files, its description, and its commands in a new environment, away from the checkout."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.forked import ROOT

PACKAGES = ("configs", "data_prep", "evaluation", "launchers", "maskwright", "pretrain")


def git(folder: Path, *words: str) -> None:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
    subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a tagged copy of the checkout, whose `build` folder may hold old files."""
    folder = tmp_path_factory.mktemp("wheel")
    kept = [*PACKAGES, "tests", "benchmarks", "docs"]  # the last three must not get into the wheel
    for name in kept:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".git_archival.txt", ".gitattributes"):
        shutil.copy(ROOT / name, folder / "source" / name)
    git(folder / "source", "init", "--quiet")
    git(folder / "source", "add", ".")
    git(folder / "source", "commit", "--quiet", "--message", "All")
    git(folder / "source", "tag", "v1.2.3")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "source")]
    built = subprocess.run(build, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of a new environment that has the wheel; other packages come from this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([folder / "bin/python", *install], check=True, cwd=folder)
    return folder / "bin"


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints. It must succeed, without help from PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_wheel_holds_the_packages_and_nothing_else(wheel):
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    expected = {path.relative_to(ROOT).as_posix() for path in files if path.parent.name != "__pycache__"}
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in ZipFile(wheel).namelist())


def test_the_version_is_that_of_the_newest_tag_if_there_is_one(wheel, tmp_path):
    """In a clone without tags, in an archive of a tagged commit, and in one of a commit without a tag."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--no-tags", str(wheel.parents[1] / "source"), str(clone))
    for name in ("bare", "tagged"):
        git(clone, "archive", "--output", str(tmp_path / f"{name}.tar"), "HEAD")
        shutil.unpack_archive(tmp_path / f"{name}.tar", tmp_path / name)
        git(clone, "tag", "--force", "v1.2.3")
    git(clone, "tag", "--delete", "v1.2.3")
    versions = [
        run(sys.executable, "-m", "setuptools_scm", "--root", folder, cwd=tmp_path)
        for folder in (clone, tmp_path / "tagged", tmp_path / "bare")
    ]
    assert re.fullmatch(r"0\.1\.dev1\+g[0-9a-f]+\n1\.2\.3\n0\.1\.dev0\n", "".join(versions))


def test_index_would_render_the_description(wheel, tmp_path):
    files = [str(path) for path in wheel.parent.iterdir()]
    assert len(files) == 2  # the wheel and the archive of sources
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=tmp_path).count("PASSED") == 2


def test_commands_run_from_the_wheel(installed, tmp_path):
    code = f"import {', '.join(PACKAGES)}; print({'.__file__, '.join(PACKAGES)}.__file__, sep='\\n')"
    for file in run(installed / "python", "-c", code, cwd=tmp_path).split():
        assert Path(file).is_relative_to(installed.parent), file
    assert run(installed / "maskwright", "--version", cwd=tmp_path) == "maskwright 1.2.3\n"
    assert "--dir" in run(installed / "maskwright", "demo", "--help", cwd=tmp_path)
    checks = run(installed / "maskwright", "doctor", cwd=tmp_path)
    assert "torch: " in checks
    assert "not installed" not in checks
    text = next(installed.parent.glob("lib/python*/site-packages/configs/demo/books.jsonl.zst"))
    assert "Next:" in run(installed / "maskwright", "init", text, "--no-prep", "--yes", cwd=tmp_path)
    assert "data/my-model/train" in run(installed / "maskwright", "config", "show", "my-model.yaml", cwd=tmp_path)
