"""Measure which part of a text a tokenizer cannot spell: unknown tokens, and characters that it drops."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from data_prep.common.errors import UserError, printable
from data_prep.tokenizer.encoders import encode_batch

WARN_SHARE, REFUSE_SHARE = 0.005, 0.1
SAMPLE_BYTES = 1 << 20  # a second with the tokenizers library
_TEXT_CHARACTERS = 1 << 15  # of each text
_EXAMPLES, _LONGEST = 5, 20  # parts of text in a message, and characters of each


@dataclass(frozen=True)
class UnknownText:
    """Counts of a sample. `lost` characters, white space excluded, are in unknown tokens or in none.

    Attributes:
        examples: the most frequent of these parts of the text.
    """

    tokens: int
    unknown: int
    characters: int
    lost: int
    examples: list[str]

    @property
    def share(self) -> float:
        """The share of unknown tokens or of lost characters; the larger one."""
        return max(self.unknown / max(1, self.tokens), self.lost / max(1, self.characters))

    def check(self, allow: bool) -> list[str]:
        """A warning if the share is above WARN_SHARE. Raises UserError above REFUSE_SHARE unless `allow` is set."""
        if self.share <= WARN_SHARE:
            return []
        shown = ", ".join(repr(printable(example)) for example in self.examples)
        unknown, lost = self.unknown / max(1, self.tokens), self.lost / max(1, self.characters)
        message = (
            f"The tokenizer cannot spell parts of the text, as {shown}: {unknown:.1%} of the tokens of a sample are "
            f"unknown, {lost:.1%} of the characters are lost. Train one with a larger --vocab-size, or with --kind "
            "bpe, which spells any text"
        )
        if self.share > REFUSE_SHARE and not allow:
            raise UserError(f"{message}; or write --allow-unknown.")
        return [f"warning: {message}."]


def measure_unknown(tokenizer: Tokenizer, texts: Iterable[str], unknown_id: int | None) -> UnknownText:
    """Count the unknown tokens and the lost characters of these texts, of each at most the first _TEXT_CHARACTERS.

    White space, and characters that the normalizer removes, are not counted as lost. Raises UserError if the tokenizer
    has no token for a part of the text.
    """
    tokens = unknown = lost = 0
    parts, counts = Counter[str](), Counter[str]()
    for text in (text[:_TEXT_CHARACTERS] for text in texts):
        (encoding,) = encode_batch(tokenizer.encode_batch, [text])
        tokens += len(encoding.ids)
        counts.update(text)
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id == unknown_id:
                unknown, lost = unknown + 1, lost + len("".join(text[start:end].split()))
                parts[text[start:end][:_LONGEST]] += 1
    counts = Counter({character: count for character, count in counts.items() if not character.isspace()})
    for character, count in counts.items():  # offsets are wrong after a dropped character
        if _is_dropped(tokenizer, character):
            lost, parts[character] = lost + count, count
    return UnknownText(tokens, unknown, counts.total(), lost, [part for part, _ in parts.most_common(_EXAMPLES)])


def _is_dropped(tokenizer: Tokenizer, character: str) -> bool:
    """Whether the model drops a character that the normalizer keeps."""
    normalizer = tokenizer.normalizer
    kept = character if normalizer is None else normalizer.normalize_str(character)
    return bool(kept.strip()) and not tokenizer.encode(character, add_special_tokens=False).ids
