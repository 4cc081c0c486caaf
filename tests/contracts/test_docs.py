"""The documentation names what exists: commands, options, config keys and defaults, files, tests, make targets."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

from evaluation.finetuning import read_suite
from experiments.layers.__main__ import app as layers
from pretrain.config import Config
from pretrain.config.model import PRESETS
from pretrain.config_files import load_config
from pretrain.planning.run_warnings import settings_warnings
from pretrain.run import EXIT_CODES
from tests.conformance.table import tables
from tests.support.configs import least_config
from tests.support.in_process import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "configs").glob("**/*.md")])
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
REQUIRED = {"run.dir": "runs/x", "data.train": "data/x", "train.steps": 1}
FOLDERS = ("benchmarks", "configs", "data_prep", "docs", "experiments", "launchers", "pretrain", "tests")


class Code(NamedTuple):
    """A fenced block with its language, or an inline span (`fenced` False)."""

    page: str
    text: str
    fenced: bool
    language: str = ""


def code(page: Path) -> Iterator[Code]:
    text = page.read_text(encoding="utf-8")
    fences = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for language, block in fences.findall(text):
        yield Code(page.name, block, True, language)
    for span in re.findall(r"`([^`]+)`", fences.sub("", text)):
        yield Code(page.name, " ".join(span.split()), False)


ALL_CODE = [piece for page in PAGES for piece in code(page)]
PROGRAM: Any = typer.main.get_command(app)


def documented_commands() -> list[tuple[str, list[str], bool]]:
    """(page, words after `maskwright`, whether it is printed to be typed)."""
    commands = []
    comments = [Code(path.name, re.sub(r"^#", "", path.read_text(), flags=re.M), True) for path in CONFIGS]
    for piece in [*ALL_CODE, *comments]:
        if piece.language in ("python", "yaml", "json"):
            continue
        for line in piece.text.replace("\\\n", " ").splitlines():
            if match := re.search(r"(?:^|[\s/])(?<!import )maskwright ([a-z-].*)", line):
                commands.append((piece.page, shlex.split(match[1], comments=True), piece.fenced))
    return commands


def check_command(words: list[str], complete: bool) -> dict[str, Any]:
    """Parse a command line with the program's own parser, without running it; the overrides' values by key.

    Raises what the parser raises for an unknown command or option, and for what a `complete` line lacks.
    """
    command = PROGRAM
    while hasattr(command, "commands"):
        if not words and not complete:
            return {}
        name, *words = words
        if name.startswith("-"):
            break
        assert name in command.commands, f"no command {name!r}; there are {', '.join(command.commands)}"
        command = command.commands[name]
    if "--help" in words:
        return {}
    context = command.context_class(command)
    if complete:
        command.parse_args(context, list(words))
        values = context.params
    else:
        values = command.make_parser(context).parse_args(list(words))[0]
    overrides = [word for word in values.get("overrides") or () if "=" in word]
    return dict(word.split("=", 1) for word in overrides)


def test_commands_and_options_exist():
    keys, problems = {*defaults(), "model.size"}, []
    assert len(documented_commands()) > 30
    for page, words, complete in documented_commands():
        try:
            overrides = check_command(words, complete)
        except Exception as error:
            problems.append(f"{page}: {shlex.join(words)}: {error}")
            continue
        strange = [key for key in overrides if key not in keys and not key.startswith(("deepspeed.", "phases."))]
        problems += [f"{page}: {key} is no config key" for key in strange]
    assert not problems, "\n".join(problems)


def test_no_documented_training_gets_a_warning():
    examples = [
        shlex.split(line[1])
        for path in (ROOT / "launchers").glob("commands/*.py")
        for line in re.finditer(r"^ +maskwright (train .*)", path.read_text(), re.M)
    ]
    trained = [words for words in [words for _, words, _ in documented_commands()] + examples if "train" in words[:1]]
    trained = [words for words in trained if "configs/" in "".join(words[1:2])]
    shipped = [(ROOT / words[1], [word for word in words[2:] if "=" in word]) for words in trained]
    assert len(shipped) > 10
    for path, overrides in [*shipped, *((path, []) for path in CONFIGS)]:
        assert not settings_warnings(load_config(path, overrides)), (path.name, overrides)


def test_options_that_are_named_alone_exist():
    known: set[str] = set()
    commands: list[Any] = [PROGRAM, typer.main.get_command(layers)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        known |= {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    others = {"slurm.md", "coming-from.md"}  # options of other programs
    spans = [piece for piece in ALL_CODE if piece.text.startswith("--") and piece.page not in others]
    assert spans
    for piece in spans:
        assert piece.text.split()[0] in known, f"{piece.page}: no option {piece.text}"


def defaults() -> dict[str, Any]:
    """The value of every key of a config that sets the required ones alone."""
    return dict(_leaves("", least_config().model_dump(mode="json")))


def _leaves(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def schema_of(key: str, whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON schemas that a key's value may follow."""
    schema: dict[str, Any] = whole
    for name in key.split("."):
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        schema = schema["properties"][name]
    return schema.get("anyOf") or schema.get("oneOf") or [schema]


def documented_keys() -> dict[str, tuple[str, str]]:
    """(type, default) as printed, by key."""
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| (required|`[^|]+`) \|", page, re.MULTILINE)
    assert len({key for key, *_ in rows}) == len(rows), "a key is there twice"
    return {key: (kind, default.strip("`")) for key, kind, default in rows}


def test_every_key_is_documented_with_its_default():
    printed = documented_keys()
    assert list(printed) == list(defaults())
    for key, value in defaults().items():
        default = printed[key][1]
        assert (default == "required") == (key in REQUIRED), key
        if key not in REQUIRED:
            assert Config.model_validate(_with(key, default)) == Config.model_validate(_with(key, value)), key


def _with(key: str, value: Any) -> dict[str, Any]:
    """A config with a value of a key, given as such or as YAML text."""
    config: dict[str, Any] = {"model": {"size": dict(PRESETS["bert"]["mini"])}}
    for name, given in {**REQUIRED, key: value}.items():
        *sections, last = name.split(".")
        inner = config
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = yaml.safe_load(given) if isinstance(given, str) else given
    return config


def test_documented_types_and_bounds():
    whole, printed = Config.model_json_schema(), documented_keys()
    limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    words = {"boolean": "true or false", "string": "text|path", "array": "two|list", "object": "mapping"}
    for key in defaults():
        kind, choices, bounds, names = printed[key][0], set(), set(), set()
        for schema in schema_of(key, whole):
            constant = [schema["const"]] if "const" in schema else []
            choices |= {str(choice) for choice in [*schema.get("enum", []), *constant]}
            bounds |= {float(schema[limit]) for limit in limits if limit in schema}
            names.add("path" if schema.get("format") == "path" else schema.get("type", ""))
        assert set(re.findall(r"`([^`]+)`", kind)) == choices, key
        if not choices:
            assert {float(n) for n in re.findall(r"\d+", kind.replace("2^64", str(2**64)))} == bounds, key
            assert all(re.search(words.get(name, name), kind) for name in names), (key, names)


def test_presets_are_documented():
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| ([\w, -]+) \| (layers .*) \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert [title for title, *_ in tables] == ["BERT, RoBERTa", "ModernBERT", "EuroBERT", "ESM-2"]
    for (_, head, rows), arch in zip(tables, ("bert", "modernbert", "eurobert", "esm"), strict=True):
        keys, presets = head.split(" | "), re.findall(r"^\| `([\w.]+)` \| (.*) \|$", rows, re.MULTILINE)
        sizes = {name: dict(zip(keys, map(int, row.split(" | ")), strict=True)) for name, row in presets}
        assert sizes == PRESETS[arch]
    assert PRESETS["roberta"] == PRESETS["bert"]


def test_printed_configs_are_valid(tmp_path):
    blocks = [piece for piece in ALL_CODE if piece.language == "yaml"]
    assert blocks
    for piece in blocks:
        (tmp_path / "printed.yaml").write_text(piece.text)
        (read_suite if "\ntasks:" in piece.text else load_config)(tmp_path / "printed.yaml")


def test_printed_python_is_python():
    for piece in ALL_CODE:
        if piece.language == "python":
            ast.parse(piece.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_paths_and_tests_that_are_named_exist():
    pattern = re.compile(rf"^((?:{'|'.join(FOLDERS)})/[\w./*-]*)(?:::(\w+))?$")
    named = [(piece.page, match) for piece in ALL_CODE if (match := pattern.match(piece.text))]
    assert len(named) > 70
    for page, match in named:
        files = list(ROOT.glob(match[1].rstrip("/")))
        assert files, f"{page}: there is no {match[1]}"
        if match[2]:
            assert re.search(rf"^def {match[2]}\(", files[0].read_text(), re.M), f"{page}: no test {match[0]}"
    words = [(piece.page, word) for piece in ALL_CODE for word in piece.text.split()]
    for page, word in words:
        if re.fullmatch(r"configs/[\w./-]+\.yaml", word):
            assert (ROOT / word).exists(), f"{page}: there is no {word}"


def test_make_targets_that_are_named_exist():
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    named = {match for piece in ALL_CODE for match in re.findall(r"(?:^|\n)make ([\w-]+)", piece.text)}
    assert {"demo", "test", "check"} <= named <= targets


def test_exit_codes_are_documented():
    page = (ROOT / "docs/recovery.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    assert {state: int(exit_code) for state, exit_code in rows} == EXIT_CODES


def test_metrics_are_documented():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "pretrain").glob("**/*.py"))
    page = (ROOT / "docs/tracking.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    metric = r"(?:train|eval|data|speed|checkpoint)/\w+"
    assert set(re.findall(rf'"({metric})"', source)) == set(re.findall(rf"`({metric})`", table))


def test_the_page_of_compatibility_has_the_tables_of_the_tests():
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    printed = page.partition("table -->\n")[2].partition("<!-- end")[0]
    assert printed == tables(), "print them with: python -m tests.conformance.table"


def test_each_fault_has_a_test():
    rows = [line for line in (ROOT / "docs/faults.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert len(rows) > 30
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[-1] == "tests" or set(cells[-1]) == {"-"} or cells[-1].startswith("`tests/"), row
