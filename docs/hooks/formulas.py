"""mkdocs hook: formulas between `$$` become MathML, which browsers show without scripts."""

import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert the formulas of a page."""
    return re.sub(r"^\$\$(.+?)\$\$$", lambda formula: convert(formula[1], display="block"), markdown, flags=re.M | re.S)
