"""mkdocs hook: add the repository's files that pages link to, and rewrite links to where the site has them."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from data_prep.common.packages import installed_version

ROOT = Path(__file__).parents[2]
RESULTS = ("benchmarks/results/*", "experiments/results/*")
OUTSIDE = ("*.md", "LICENSE", *RESULTS, "configs/*.yaml", "configs/*/*.yaml", "configs/**/*.md")
_NOT_SEARCHED = ("benchmarks/results/", "experiments/results/", "configs/", "CHANGELOG.md", "LICENSE")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version at the foot of each page."""
    config.copyright = f"Maskwright {installed_version('maskwright')}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of OUTSIDE; a config becomes a page that shows it."""
    for pattern in OUTSIDE:
        for path in ROOT.glob(pattern):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".yaml":
                content = f"# {name}\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n"
                files.append(File.generated(config, site_name(name), content=content))
            else:
                files.append(File.generated(config, site_name(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the relative links of a page from the repository's folders to folders of the site.

    Configs, results and the changes are left out of the search: they name every key, and explain none.
    """
    if page.file.src_uri.startswith(_NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    source = Path(page.file.abs_src_path or "")
    if not source.is_relative_to(ROOT):  # generated: its links are links of the site
        return markdown
    folder, here = source.parent.relative_to(ROOT).as_posix(), posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        return posixpath.relpath(site_name(target), here or ".")

    return _LINK.sub(moved, markdown)


def site_name(name: str) -> str:
    """Where the site has a file of the repository: docs/ is its root, and the README its first page."""
    if name == "README.md":
        return "index.md"
    return name.removeprefix("docs/") + (".md" if name.endswith(".yaml") else "")
