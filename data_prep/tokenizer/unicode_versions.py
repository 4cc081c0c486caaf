"""Letters and numbers that not all libraries know yet: words, and so the ids, hang on Unicode's version."""

import re

import numpy as np

# Letters and numbers that Unicode 17 added (https://www.unicode.org/Public/17.0.0/ucd/DerivedAge.txt): gigatoken 0.10
# knows them, tokenizers 0.23 does not.
_BASIC = "\u088f\u0c5c\u0cdc\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1"
_BEYOND = re.compile(
    "[\U00010940-\U00010959\U00010ec5-\U00010ec7\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00016ea0-\U00016eb8"
    "\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e\U00018d80-\U00018df2"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6e2\U0001e6e4\U0001e6e5\U0001e6e7-\U0001e6ed\U0001e6f0-\U0001e6f4"
    "\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)


def is_settled(text: str) -> bool:
    """Whether all libraries agree on which of its characters are letters and numbers."""
    if text.isascii():
        return True
    if any(character in text for character in _BASIC):
        return False
    return _BEYOND.search(_beyond_basic(text)) is None


def _beyond_basic(text: str) -> str:
    """The characters from U+10000 on. Most texts have none, which UTF-16 tells faster than a search."""
    if len(text.encode("utf-16-le", "surrogatepass")) == 2 * len(text):
        return ""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return characters[characters > 0xFFFF].tobytes().decode("utf-32-le")
