"""mkdocs hook: the page with all commands, made from typer, and an anchor for each configuration key."""

import inspect
import re

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from data_prep.cleaning import filter_forms, known_filters
from launchers.app import program

_KEYS = "configuration.md"
_BOOST = 3  # of the page of keys in the search: what a key means is there


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add reference/commands.md."""
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give each row of a key an anchor, such as configuration/#schedule.warmup_steps, and a link to it."""
    if page.file.src_uri != _KEYS:
        return markdown
    page.meta["search"] = {"boost": _BOOST}
    return re.sub(r"^\| `(\w+(?:\.\w+)*)` \| (?=.*\| (?:required|`))", r"| [`\1`](#\1){ #\1 } | ", markdown, flags=re.M)


def commands_page() -> str:
    """The help of every command, as Markdown."""
    command = typer.main.get_command(program())
    page = get_docs_for_click(obj=command, ctx=typer.Context(command), name="maskwright", title="Commands")
    return page.replace("\b\n", "") + filters_table()  # without marks for the help in a terminal


def filters_table() -> str:
    """The filters of text, as Markdown."""
    text = "\n## Filters of `maskwright prep run`\n\n| option | leaves out | counted as |\n|---|---|---|\n"
    for form, kind in zip(filter_forms(), known_filters().values(), strict=True):
        text += f"| `--filter {form}` | {inspect.cleandoc(kind.__doc__ or '')} | {', '.join(kind.reasons)} |\n"
    return text
