"""Leave out repetitive documents."""

from data_prep.cleaning.text_filter import TextFilter


class Repetitive(TextFilter):
    """Documents that repeat lines, paragraphs or n-grams, by Gopher's rules."""

    name, reasons, order = "repetitive", ("repetitive",), 20

    def keep(self, texts: list[str]) -> list[str | None]:
        from data_prep.cleaning.repetition import repetitive  # needs numpy, which the help does not

        return ["repetitive" if repeats else None for repeats in repetitive(texts).tolist()]
