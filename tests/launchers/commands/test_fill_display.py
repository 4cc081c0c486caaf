"""How `maskwright fill` shows masks and probabilities."""

import pytest

from launchers.commands.fill import _bar, _numbered


@pytest.mark.parametrize(
    ("line", "masks", "shown"),
    [
        ("a [MASK].", 1, "a [MASK]."),
        ("[MASK] [MASK]", 2, "[MASK 1] [MASK 2]"),
        ("[MASK] <mask>", 2, "[MASK] <mask>"),
    ],
)
def test_several_masks_are_numbered(line: str, masks: int, shown: str) -> None:
    assert _numbered(line, masks) == shown


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [len(_bar(share)) for share in (0.0, 0.001, 0.5, 1.0)] == [0, 0, 15, 30]
    assert _bar(0.05) == "\u2588\u258c", "one and a half of thirty characters"
