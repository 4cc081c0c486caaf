"""The documentation site: its pages, and the reference that is made from the code."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from launchers.app import COMMANDS
from tests.contracts.test_docs import defaults, documented_keys

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated_reference", ROOT / "docs/hooks/generated_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(config: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run([*command, "--site-dir", str(out)], cwd=ROOT, capture_output=True, text=True)


def test_the_site_builds_without_warnings_and_asks_no_other_server(tmp_path):
    result = build(ROOT / "mkdocs.yml", tmp_path)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "architecture/index.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "$$" not in page
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page)
    assert 'href="../benchmarks/results/prep/"' in (tmp_path / "data-preparation/index.html").read_text()
    assert 'href="configs/demo/"' in (tmp_path / "index.html").read_text()


def test_the_reference_has_every_key_with_its_default_and_a_description(reference):
    keys = {key.name: key for key in reference.configuration_keys()}
    assert list(defaults()) == [name for name in keys if name in defaults()]
    assert [key.name for key in keys.values() if not key.description] == []
    for name, (_, printed) in documented_keys().items():
        assert (printed == "required") == (keys[name].default == "required"), name
    assert keys["train.global_batch_size"][1:3] == ("integer ≥ 1", "32")
    assert keys["optim.muon.momentum"].default == "0.95"
    assert keys["data.train[].weight"].type == "number > 0 or null"
    assert keys["run.dir"].default == "required"


def test_the_reference_has_every_command_with_its_options(reference):
    page = reference.commands_page()
    for name in COMMANDS:
        assert f"# `maskwright {name}`" in page, name
    assert "* `--vocab-size" in page
    assert "| `--filter repetitive` | Documents that repeat lines, paragraphs or n-grams" in page
