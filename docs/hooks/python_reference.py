"""mkdocs hook: the page of the Python package, made from its signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import maskwright

_SECTION = re.compile(r"(Args|Returns|Raises):")
_ITEM = re.compile(r"    ((?:\w+, )*\w+): (.*)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/python.md."""
    files.append(File.generated(config, "reference/python.md", content=python_page()))
    return files


def python_page() -> str:
    """All names of the package, as Markdown."""
    parts = ["# Python", *_paragraphs(inspect.getdoc(maskwright) or "")]
    for name in maskwright.__all__:
        thing = getattr(maskwright, name)
        parts += [f"## {name}", *_described(name, thing)]
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for member, value in vars(thing).items():
                if not member.startswith("_"):
                    parts += [f"### {name}.{member}", *_described(member, value)]
    return "\n\n".join(parts) + "\n"


def _described(name: str, thing: Any) -> Iterator[str]:
    """The signature of a function, method or class, and its docstring."""
    if callable(thing):
        shown = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in _parameters(thing)]
        signature = str(inspect.Signature(shown))
        yield f"```python\n{name}{signature}\n```"
    yield from _paragraphs(inspect.getdoc(thing) or "")


def _parameters(thing: Any) -> list[inspect.Parameter]:
    return [parameter for parameter in inspect.signature(thing).parameters.values() if parameter.name != "self"]


def _paragraphs(docstring: str) -> Iterator[str]:
    """A docstring as Markdown: its sections get bold heads, and their items become lists."""
    for block in docstring.split("\n\n"):
        head, *lines = block.splitlines() or [""]
        if not _SECTION.fullmatch(head):
            yield block
            continue
        yield f"**{head.removesuffix(':')}**"
        items: list[str] = []
        for line in lines:
            if (match := _ITEM.fullmatch(line)) and not head.startswith("Returns"):
                items.append(f"- `{match[1]}`: {match[2]}")
            elif items:
                items[-1] += f" {line.strip()}"
            else:
                items.append(line.strip())
        yield "\n".join(items)
