"""Leave out short and long documents."""

import re

from data_prep.cleaning.text_filter import TextFilter


class Characters(TextFilter):
    """Documents with fewer than MIN or more than MAX characters (code points). Both limits are inclusive."""

    name, value, reasons, order = "characters", "MIN-MAX", ("short", "long"), 10

    def __init__(self, value: str) -> None:
        match = re.fullmatch(r"([0-9]{0,15})-([0-9]{0,15})", value)
        if match is None or value == "-":
            raise ValueError("give MIN-MAX, MIN- or -MAX, as 100-20000")
        self._least, self._most = int(match[1] or 0), int(match[2]) if match[2] else None
        if self._most is not None and self._most < max(1, self._least):
            raise ValueError(f"no document has that; give a MAX of at least {max(1, self._least)}")

    def keep(self, texts: list[str]) -> list[str | None]:
        return [self._reason(len(text)) for text in texts]

    def _reason(self, characters: int) -> str | None:
        if characters < self._least:
            return "short"
        return "long" if self._most is not None and characters > self._most else None
