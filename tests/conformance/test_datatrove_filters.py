"""datatrove's filters and formatters as `--filter`: the same decisions and texts as datatrove's own."""

import pytest

from data_prep.cleaning import Cleaning
from tests.support.text_data import sentences

FILTERS = "datatrove.pipeline.filters"
PAGE = "\n".join(f"The captain and the cook have met with the king of ships, and that is number {n}." for n in range(9))
DIRTY = {
    "gopher_short_doc": "Too short.",
    "gopher_too_many_hashes": PAGE.replace(" of ", " # # # # "),
    "gopher_above_avg_threshold": "the of " + "abcdefghijklmnop " * 60,
}


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    """In place of the packages of the other tests: those of this one."""
    for name in ("datatrove", "spacy"):
        pytest.importorskip(name)


@pytest.mark.parametrize("name", ["GopherQualityFilter", "FineWebQualityFilter", "C4QualityFilter"])
def test_filters_decide_as_in_datatrove(name):
    import datatrove.pipeline.filters
    from datatrove.data import Document

    pages = [PAGE, *DIRTY.values(), PAGE + "\nWe use cookies.", PAGE + " {", "\n".join(sentences(20))]
    texts, reasons = Cleaning(filters=(f"{FILTERS}:{name}",)).with_versions().clean(pages)
    step = getattr(datatrove.pipeline.filters, name)()
    for page, text, reason in zip(pages, texts, reasons, strict=True):
        document = Document(page, id="")
        result = step.filter(document)
        assert reason == ("" if result is True else f"{name}: {result[1]}")
        assert text == document.text
    assert "" in reasons
    assert any(reasons)


def test_reasons_arguments_and_version():
    import datatrove.pipeline.filters  # noqa: F401

    option = f'{FILTERS}:GopherQualityFilter={{"min_doc_words": 5}}'
    cleaning = Cleaning(filters=(option,)).with_versions()
    assert "GopherQualityFilter@0." in cleaning.filters[0]
    reasons = cleaning.clean([PAGE, *DIRTY.values()])[1]
    assert reasons == ["", *(f"GopherQualityFilter: {reason}" for reason in DIRTY)]


def test_the_formatter_of_addresses_changes_texts():
    option = 'datatrove.pipeline.formatters.pii:PIIFormatter={"email_replacement": "email@example.com"}'
    texts, reasons = Cleaning(filters=(option,)).clean(["Write to me.here@some.org now.", "No address."])
    assert (texts, reasons) == (["Write to email@example.com now.", "No address."], ["", ""])
