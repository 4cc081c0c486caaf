"""docs/compatibility.md prints the table of tests/conformance."""

from tests.conformance.table import tables
from tests.support.forked import ROOT


def test_the_page_has_the_tables_of_the_tests():
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    printed = page.partition("table -->\n")[2].partition("<!-- end")[0]
    assert printed == tables(), "print them with: python -m tests.conformance.table"
