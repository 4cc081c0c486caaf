"""Cut texts that are longer than the limit of a document."""


def cut_bytes(text: bytes, max_bytes: int) -> list[bytes]:
    """Pieces of at most `max_bytes` of a text in UTF-8.

    Each piece but the last ends at the last line end in the second half of what it can hold, else at the last space
    there, else at the last whole character. The line end or space itself is dropped. A cut depends only on the text
    before it and on the next byte, so a text can be cut while it is read.
    """
    pieces, start = [], 0
    while len(text) - start > max_bytes:
        end, next_start = _cut(text, start, max_bytes)
        pieces.append(text[start:end])
        start = next_start
    return [*pieces, text[start:]]


def cut_text(text: str, max_bytes: int) -> list[str]:
    """As `cut_bytes`, for a str."""
    if 4 * len(text) <= max_bytes:
        return [text]
    return [piece.decode() for piece in cut_bytes(text.encode(), max_bytes)]


def _cut(text: bytes, start: int, max_bytes: int) -> tuple[int, int]:
    """The end of the piece from `start` on, and the start of the next one."""
    last = start + max_bytes
    for mark in (b"\n", b" ", b"\t"):
        if (end := text.rfind(mark, start + max_bytes // 2, last + 1)) >= 0:
            return end, end + 1
    first_of_character = next((at for at in range(last, max(start, last - 4), -1) if text[at] & 0xC0 != 0x80), last)
    return first_of_character, first_of_character
