"""The documentation site: its pages, and the reference that is made from the code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.app import COMMANDS
from pretrain.config import Config
from tests.contracts.test_docs import defaults

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT / "mkdocs.yml", folder)
    assert result.returncode == 0, result.stderr
    return folder


def build(config: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run([*command, "--site-dir", str(out)], cwd=ROOT, capture_output=True, text=True)


def test_the_site_builds_without_warnings_and_asks_no_other_server(site):
    page = (site / "architecture/index.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "$$" not in page
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page)
    assert 'href="../benchmarks/results/prep/"' in (site / "data-preparation/index.html").read_text()
    assert 'href="configs/demo/"' in (site / "index.html").read_text()


def test_the_python_package_and_its_notebook_have_pages(site):
    reference = (site / "reference/python/index.html").read_text(encoding="utf-8")
    for name in ("prepare", "train", "Run.metrics", "DataSet.show", "valid_fraction", "evaluate", "fill"):
        assert name in reference
    notebook = (site / "notebook/index.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in notebook
    assert "completed, step 160 of 160" in notebook
    assert "\x1b" not in notebook
    assert (site / "notebook/notebook.ipynb").exists() or (site / "notebook.ipynb").exists()


def test_each_key_has_an_anchor_and_the_search_finds_it_there(site):
    page = (site / "configuration/index.html").read_text(encoding="utf-8")
    assert re.findall(r'<a href="#([\w.]+)" id="\1">', page) == list(defaults())
    parts = json.loads((site / "search/search_index.json").read_text())["docs"]
    sections = {part["location"]: part for part in parts if "schedule.warmup_steps" in part["text"]}
    assert sections["configuration/#schedule"]["boost"] > 1
    assert "learning rate warmup" in sections["configuration/#schedule"]["text"]
    assert not [part for part in parts if re.match(r"configs/|(benchmarks|experiments)/results/", part["location"])]


def test_each_key_has_a_description_for_editors():
    sections = [Config.model_json_schema(), *Config.model_json_schema()["$defs"].values()]
    keys = {name: key for section in sections for name, key in section.get("properties", {}).items()}
    assert [name for name, key in keys.items() if "$ref" not in key and not key.get("description")] == []


def test_the_reference_has_every_command_with_its_options(site):
    page = (site / "reference/commands/index.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"<code>maskwright {name}</code>" in page, name
    assert "<code>--vocab-size" in page
    assert "<code>--filter repetitive</code>" in page
    assert "Documents that repeat lines, paragraphs or n-grams" in page
