"""Documents as text with marks, for WordPiece, byte-level BPE and others, and texts of `fill` with numbered masks."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from data_prep.common.errors import printable
from data_prep.common.reading import typed
from data_prep.tokenizer import Spelling, train_tokenizer
from launchers.commands.fill import _bar, _numbered
from launchers.display.marked_text import coloured, listed, marked, plain_text
from pretrain.data import BatchDocument

CLS, SEP, MASK = 2, 3, 4
OUTSIDE = frozenset({CLS, SEP})
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "em", "##bed", "##ding", "jumps", "over", "##ed"]


def saved(tokenizer: Tokenizer, folder: Path) -> Spelling:
    tokenizer.save(str(folder / "tokenizer.json"))
    return Spelling.open(folder)


@pytest.fixture
def wordpiece(tmp_path) -> Spelling:
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return saved(tokenizer, tmp_path)


@pytest.fixture
def byte_level(tmp_path) -> tuple[Spelling, Tokenizer]:
    train_tokenizer(["the naïve café — the naïve fox\njumps 🦊"] * 3, "bpe", 290, tmp_path / "bpe")
    return Spelling.open(tmp_path / "bpe"), Tokenizer.from_file(str(tmp_path / "bpe" / "tokenizer.json"))


def made(original: list[int], seen: list[int], predictions: list[tuple[int, int, str]]) -> BatchDocument:
    """A document with predictions (place, label, kind)."""
    named = [dict(zip(("place", "label", "kind"), prediction, strict=True)) for prediction in predictions]
    return typed(BatchDocument, {"slot": 0, "original": original, "seen": seen, "predictions": named})


def document(original: list[int], changes: dict[int, int]) -> BatchDocument:
    """A document between [CLS] and [SEP]; at the given places, what the model sees."""
    ids = [CLS, *original, SEP]
    seen = [changes.get(place, id) for place, id in enumerate(ids)]

    def kind(place: int) -> str:
        return "mask" if seen[place] == MASK else "kept" if seen[place] == ids[place] else "random"

    return made(ids, seen, [(place, ids[place], kind(place)) for place in changes])


def shown(spelling: Spelling, original: list[int], changes: dict[int, int]) -> str:
    return plain_text(marked(document(original, changes), spelling, OUTSIDE))


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "changes", "wanted"),
    [
        ("the fox jumps", {}, "the fox jumps"),
        ("the fox jumps", {2: MASK}, "the ⟦fox⟧ jumps"),
        ("the fox jumps", {1: MASK}, "⟦the⟧ fox jumps"),
        ("the fox jumps", {3: 11}, "the fox ⟦jumps→over⟧"),
        ("the fox jumps", {2: 12}, "the ⟦fox→##ed⟧ jumps"),
        ("the fox jumps", {2: 6}, "the ⟦fox=⟧ jumps"),
        ("em ##bed ##ding the", {2: MASK}, "em⟦bed⟧ding the"),
        ("em ##bed ##ding the", {1: MASK, 2: 5, 3: 9}, "⟦em⟧⟦bed→the⟧⟦ding=⟧ the"),
        ("em ##bed ##ding the", {1: MASK, 2: MASK, 3: 9, 4: 5}, "⟦em⟧⟦bed⟧⟦ding=⟧ ⟦the=⟧"),
        ("##ding [UNK] the", {1: MASK}, "⟦ding⟧ [UNK] the"),
        ("", {}, ""),
    ],
)
def test_wordpiece(wordpiece, text, changes, wanted):
    assert shown(wordpiece, ids(text), changes) == wanted


@pytest.mark.parametrize(
    ("units", "changes", "wanted"),
    [
        ([0, 1, 2, 2, 2, 3, 4], {2: MASK, 3: MASK, 4: MASK}, "the ⟦embedding⟧ jumps"),
        ([0, 1, 2, 2, 2, 3, 4], {2: 5, 3: 6, 4: 12}, "the ⟦embedding→the fox ##ed⟧ jumps"),
        ([0, 1, 2, 2, 2, 3, 4], {2: 7, 3: 8, 4: 9, 5: 10}, "the ⟦embedding=⟧ ⟦jumps=⟧"),
        ([0, 1, 2, 2, 2, 2, 4], {2: MASK, 3: MASK, 4: MASK, 5: MASK}, "the ⟦embedding jumps⟧"),
        ([0, 1, 2, 2, 2, 2, 4], {2: MASK, 3: MASK, 4: 9, 5: 10}, "the ⟦embed⟧⟦ding jumps=⟧"),
        ([0, 1, 2, 3, 3, 4, 5], {2: MASK, 3: MASK, 4: MASK}, "the ⟦em⟧⟦bedding⟧ jumps"),
    ],
)
def test_units_share_a_mark(wordpiece, units, changes, wanted):
    found = document(ids("the em ##bed ##ding jumps"), changes)
    assert plain_text(marked(found, wordpiece, OUTSIDE, units)) == wanted


def test_tokens_of_a_causal_model_have_no_mark(wordpiece):
    original = [CLS, *ids("em ##bed [UNK] fox"), SEP]
    found = made(original, original, [(place, original[place], "next") for place in (1, 2, 4)])
    assert marked(found, wordpiece, OUTSIDE) == [("embed [UNK] fox", None)]


def test_an_unknown_id_is_shown_as_a_number(wordpiece):
    assert shown(wordpiece, [5, 999, 6], {3: 998}) == "the <999> ⟦fox→<998>⟧"


@pytest.mark.parametrize("text", ["the naïve café — fox", "jumps\n🦊🦊 over", " the  fox "])
def test_byte_level_text_is_whole_again(byte_level, text):
    spelling, tokenizer = byte_level
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert spelling.text(tokens) == text
    pieces = [spelling.text([token]) for token in tokens]
    whole = [place for place, piece in enumerate(pieces) if piece.strip() and "\ufffd" not in piece]
    assert whole
    for place in whole:
        found = made(tokens, tokens, [(place, tokens[place], "mask")])
        bare = plain_text(marked(found, spelling, frozenset()))
        assert bare.replace("⟦", "").replace("⟧", "") == text.lstrip(" ")
        assert f"⟦{pieces[place].lstrip()}⟧" in bare


def test_white_space_alone_is_named_and_parts_of_a_character_are_replaced(byte_level):
    spelling, tokenizer = byte_level
    newline, tokens = tokenizer.token_to_id("Ċ"), tokenizer.encode("🙂", add_special_tokens=False).ids
    assert plain_text(marked(made([newline], [newline], [(0, newline, "kept")]), spelling, OUTSIDE)) == "\n⟦Ċ=⟧"
    assert len(tokens) > 1
    found = made(tokens, tokens, [(0, tokens[0], "kept")])
    assert plain_text(marked(found, spelling, OUTSIDE)).startswith("⟦\ufffd=⟧\ufffd")


def test_sentencepiece_s_space(tmp_path):
    vocab = [("<unk>", 0.0), ("▁the", -1.0), ("▁fo", -1.0), ("x", -1.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    spelling = saved(tokenizer, tmp_path)
    found = made([1, 2, 3], [1, 2, 0], [(2, 3, "random")])
    assert plain_text(marked(found, spelling, frozenset())) == "the fo⟦x→<unk>⟧"


def test_control_characters_are_spelled_out(tmp_path):
    vocab = {"a\x1b[31m": 5, "b\u202e": 6, "[UNK]": 1}
    spelling = saved(Tokenizer(models.WordPiece(vocab, unk_token="[UNK]")), tmp_path)
    text = shown(spelling, [5, 6, 5], {2: MASK, 3: 6})
    assert text == "a\\x1b[31m ⟦b\\u202e⟧ ⟦a\\x1b[31m→b\\u202e⟧"
    assert printable("a\tb\n\x00", keep="\n\t") == "a\tb\n\\x00"


def test_colours_on_a_terminal_and_no_markup(wordpiece):
    segments = marked(document(ids("the fox [UNK] jumps"), {1: MASK, 2: 10, 4: 10}), wordpiece, OUTSIDE)
    assert [kind for _, kind in segments if kind] == ["mask", "random", "kept"]
    terminal = io.StringIO()
    Console(file=terminal, force_terminal=True, color_system="standard", width=200).print(coloured(segments))
    assert terminal.getvalue().count("\x1b[1;3") == 3
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, color_system="standard", width=200).print(listed(segments))
    assert shown.getvalue().startswith("\x1b[2m- \x1b[0m\x1b[1;33m⟦the⟧\x1b[0m ")
    pipe = io.StringIO()
    Console(file=pipe, width=200).print(coloured(segments))
    assert pipe.getvalue() == "⟦the⟧ ⟦fox→jumps⟧ [UNK] ⟦jumps=⟧\n"


@pytest.mark.parametrize(
    ("line", "masks", "shown"),
    [("a [MASK].", 1, "a [MASK]."), ("[MASK] [MASK]", 2, "[MASK 1] [MASK 2]"), ("[MASK] <mask>", 2, "[MASK] <mask>")],
)
def test_several_masks_are_numbered(line: str, masks: int, shown: str) -> None:
    assert _numbered(line, masks) == shown


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [len(_bar(share)) for share in (0.0, 0.001, 0.5, 1.0)] == [0, 0, 15, 30]
    assert _bar(0.05) == "\u2588\u258c", "one and a half of thirty characters"
