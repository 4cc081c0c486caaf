"""Encoders: the ids and word starts of the tokenizers library, for every kind of tokenizer and any text.

A fast package that is wrong or fails is skipped, and the memory of packages is bounded.
"""

import json
import signal
import sys
import unicodedata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from data_prep.tokenizer import Encoders, choose_encoder, describe_tokenizer, load, train_tokenizer
from data_prep.tokenizer.encoders import GigatokenEncoder, HuggingFaceEncoder, TextEncoder, is_settled
from data_prep.tokenizer.word_starts import word_rule
from tests.support import small_tokenizers
from tests.support.small_tokenizers import MIXED, SPECIALS, byte_level, changed, check, demo_texts, expected, loaded

PIECES = [*MIXED, *SPECIALS, "|||IP|||", "##", "##a", "▁", "Ġ", "[CLS]", "the", " and", " '", "  ", "\r\n"]
PIECES += ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'RE", "'r", "'v", "'l", "''"]
PIECES += ["\x00", "\x1c", "\x85", "\u2028", "\u200b", "\ufeff"]
TEXTS = st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8")), max_size=24).map("".join))
NAMES = ["bert", "wordpiece-words", "bpe", "bpe-prefix", "bpe-nfc-added", "bpe-prefix-added", "bpe-lowercase"]
NAMES += ["llama-3", "llama-3-added", "llama-3-newline", "o200k", "split-gpt-2"]
NAMES += ["bpe-strip", "bpe-whole", "bpe-bytes", "sentencepiece-bpe", "sentencepiece-whole"]
NAMES += ["unigram", "unigram-added", "unigram-strip", "unigram-words"]
FOLLOW_WORD_IDS = [name for name in NAMES if "whole" not in name]
FAST = {"bert": "nanotoken", "sentencepiece-bpe": "gigatoken", "sentencepiece-whole": "gigatoken"}
FAST |= dict.fromkeys(("bpe", "bpe-bytes", "bpe-prefix", "bpe-nfc-added", "bpe-prefix-added"), "gigatoken")
FAST |= dict.fromkeys(("llama-3", "llama-3-added", "llama-3-newline", "o200k"), "gigatoken")
SLOW = {"wordpiece-words": "nanotoken is not used: its vocabulary does not show where words begin"}
SLOW |= {"bpe-lowercase": "gigatoken is not used: Unsupported normalizer type: Lowercase", "unigram": ""}
SLOW |= {"split-gpt-2": "gigatoken is not used: Unknown pre_tokenizer Split regexes, no fast pretokenizer"}
SLOW |= {"bpe-strip": "gigatoken is not used: Unsupported normalizer type: Strip"}
SLOW |= {"bpe-whole": "gigatoken is not used: its ids differ from the tokenizers library's"}
SLOW |= dict.fromkeys(("unigram-words", "unigram-strip", "unigram-added"), "")


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return demo_texts()[::4]


@pytest.fixture(scope="module")
def tokenizers(corpus, tmp_path_factory) -> dict[str, SimpleNamespace]:
    states = small_tokenizers.all_tokenizers(corpus)
    return {name: loaded(state, tmp_path_factory.mktemp(name)) for name, state in states.items()}


@pytest.fixture(scope="module")
def rules(tokenizers) -> dict[str, Any]:
    """The rules of words of the tokenizers that have some."""
    names = [name for name in NAMES if name not in ("bert", "wordpiece-words")]
    states = {name: json.loads(tokenizers[name].tokenizer.to_str()) for name in names}
    return {name: word_rule(tokenizers[name].tokenizer, state)[0] for name, state in states.items()}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
@example(texts=["", "it's", "'", "", "s", "'re", "'r", "e", "'l x", " 's", "\n's", "\n\n 's", "a \n", "a\n\n|||IP|||b"])
@example(texts=["", "", ""])
@example(texts=["|||IP|||", "", "|||IP|||  "])
@example(texts=["", "a'", "re", "a'rx", "a'rea"])
@example(texts=["\U00016ea0're", "\ua7ce're", "\U0001f600're"])
@example(texts=[MIXED, "  |||IP|||'s x|||IP|||", "'|||IP|||s", "\u3000\u3000a \u3000 \u3000", "東 京\u3000"])
def test_any_text(tokenizers, name, texts):
    made = tokenizers[name]
    encoder, _ = made.encoders.choose([MIXED])
    check(made, encoder, texts, name in FOLLOW_WORD_IDS)
    check(made, made.encoders.library, texts, name in FOLLOW_WORD_IDS)


@pytest.mark.parametrize("name", NAMES)
def test_text_that_spells_special_tokens_is_text(tokenizers, name):
    made = tokenizers[name]
    encoder, _ = made.encoders.choose([MIXED])
    ids, lengths, _ = encoder(["one<mask> two</s>", "<s> <pad>", "<mask>"])
    assert lengths.all()
    assert not {*ids.tolist()} & ({*made.info.all_special_ids} - {made.info.special_ids["unk"]})


def test_only_a_text_with_a_new_letter_is_left_to_the_library(tokenizers, corpus, monkeypatch):
    pytest.importorskip("gigatoken")
    made, left, new = tokenizers["bpe"], list[str](), "a\U00016ea0're"
    encoder, note = made.encoders.choose([*corpus[:5], new])
    assert (encoder.name, note) == ("gigatoken", "")
    whole = HuggingFaceEncoder.encode_chunk
    monkeypatch.setattr(HuggingFaceEncoder, "encode_chunk", lambda self, some: left.extend(some) or whole(self, some))
    for texts in ([*corpus[:3], new, "", *corpus[3:5], new], [new], ["", new]):
        left.clear()
        check(made, encoder, texts, follows=True)
        assert left == [text for text in texts if text == new]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "bpe", "sentencepiece-bpe", "llama-3", "o200k"])
def test_all_characters(tokenizers, name):
    """Also those that only the package or only the library knows to be letters or numbers."""
    made = tokenizers[name]
    encoder, _ = made.encoders.choose([MIXED])
    assert encoder.name == FAST[name]
    planes = [*range(0x20, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE0200)]  # others are empty
    texts = [form.format(chr(number)) for number in planes for form in ("{0}'re1{0}", "a{0}a {0}A\u0301{0}")]
    settled = [text for text in texts if is_settled(text)]
    assert len(texts) - len(settled) < 2 * 30_000
    unicode = {character for text in settled for character in text if unicodedata.category(character)[0] in "LMN"}
    assert len(unicode) > 130_000
    ids, lengths, starts = made.encoders.reference(settled)
    for tested in (encoder, made.encoders.library):
        ours = tested(settled)
        np.testing.assert_array_equal(ours[0], ids)
        np.testing.assert_array_equal(ours[1], lengths)
        if starts is not None and name != "sentencepiece-bpe":
            np.testing.assert_array_equal(ours[2], starts)
    check(made, encoder, sorted({*texts} - {*settled})[::10], name in FOLLOW_WORD_IDS)


@pytest.mark.parametrize("name", NAMES)
def test_the_fastest_is_chosen(tokenizers, corpus, name):
    encoder, note = tokenizers[name].encoders.choose(corpus)
    package = FAST.get(name) or SLOW[name].partition(" ")[0]
    if package:
        pytest.importorskip(package)
    assert (encoder.name, note.partition(" for: ")[0]) == (FAST.get(name, "tokenizers"), SLOW.get(name, ""))
    check(tokenizers[name], encoder, corpus[-100:], name in FOLLOW_WORD_IDS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(texts=TEXTS)
@example(texts=[])
@example(texts=["", "", ""])
@example(texts=["one\ntwo\n\nthree four  five\tsix\nseven", "eight nine|||IP|||ten eleven"])
def test_pieces_do_not_change_the_encoding(tokenizers, rules, name, texts):
    for rule in (rules.get(name), "word_ids"):
        encoder = HuggingFaceEncoder(tokenizers[name].tokenizer, rule)
        whole = encoder(texts)
        encoder.chunk_characters = 3
        for ours, theirs in zip(encoder(texts), whole, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_long_texts_are_cut():
    seen: list[list[str]] = []

    class Lengths(TextEncoder):
        chunk_characters = 4

        def encode_chunk(self, texts):
            seen.append(list(texts))
            lengths = np.array([len(text) for text in texts])
            return np.zeros(lengths.sum(), np.uint32), lengths, None

    _, lengths, _ = Lengths(byte_level(["a"]))(["one two\nthree", "", "four five"])
    assert seen == [["one two"], ["\nthree"], ["", "four"], [" five"]]
    assert lengths.tolist() == [13, 0, 9]


def test_words_that_end_with_a_space(corpus, tmp_path):
    words = pre_tokenizers.Split(Regex(r"\p{L}+ ?|\p{N}+|[^\p{L}\p{N}]"), "isolated")
    split = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made = loaded(changed(byte_level(corpus), pre_tokenizer=split), tmp_path)
    rule, _ = word_rule(made.tokenizer, json.loads(made.tokenizer.to_str()))
    check(made, HuggingFaceEncoder(made.tokenizer, rule), [MIXED, "the cat, the dog. A  bird"], True)


def test_words_of_a_tokenizer_that_splits_nowhere(tokenizers):
    made = tokenizers["sentencepiece-whole"]
    encoder, _ = made.encoders.choose([MIXED])
    text = "the cat\nand  the\tdog of course"
    ids, _, starts = encoder([text])
    assert sum(expected(made.tokenizer, [text])[2]) == 1, "word_ids see one word"
    words: list[str] = []
    for id, start in zip(ids, starts, strict=True):
        words += [""] * int(start)
        words[-1] += made.tokenizer.id_to_token(int(id))
    plain = [word.replace("▁", " ").replace("<0x0A>", "\n").replace("<0x09>", "\t").strip(" ") for word in words]
    assert [word for word in plain if word] == ["the", "cat", "\n", "and", "the", "\t", "dog", "of", "course"]


def test_every_character_has_the_class_that_the_pattern_gives_it(tokenizers):
    """All code points but surrogates, each alone between letters, so that a wrong class moves a boundary."""
    made = tokenizers["bpe"]
    points = [*range(0x3400), *range(0x3400, 0xD800, 97), *range(0xE000, 0x110000, 97)]
    texts = ["".join(f"{chr(point)}a{chr(point)} " for point in points[at::8]) for at in range(8)]
    check(made, made.encoders.library, texts, True)


def test_the_prefix_tells_word_starts_only_where_no_word_can_begin_with_it(tokenizers, tmp_path):
    assert tokenizers["bert"].info.continuation_prefix == "##"
    assert tokenizers["wordpiece-words"].info.continuation_prefix is None
    state = json.loads(tokenizers["bert"].tokenizer.to_str())
    state["added_tokens"].append(state["added_tokens"][0] | {"id": 1500, "content": "##mark", "special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert describe_tokenizer(tmp_path).continuation_prefix is None


@pytest.fixture
def bpe(tokenizers) -> SimpleNamespace:
    pytest.importorskip("gigatoken")
    return tokenizers["bpe"]


def test_other_patterns_are_left_to_the_library(corpus, tmp_path):
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    state = changed(byte_level(corpus[:20]), pre_tokenizer=digits)
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    made = SimpleNamespace(tokenizer=load(tmp_path), info=describe_tokenizer(tmp_path))
    encoder, note = Encoders(made.tokenizer, made.info).choose(corpus[:20])
    assert encoder.name == "tokenizers"
    pytest.importorskip("gigatoken")
    assert "gigatoken is not used: word starts" in note
    assert "Digits" in note
    check(made, encoder, [MIXED, "in 1984 's"], True)


def test_a_wrong_or_failing_package_is_left_out(bpe, monkeypatch):
    import gigatoken

    real = gigatoken.Tokenizer

    class Wrong:
        from_json = staticmethod(lambda text: Wrong(real.from_json(text)))

        def __init__(self, right):
            self.right = right

        def encode_batch(self, texts, **options):
            return self.right.encode_batch([text.replace("é", "e") for text in texts], **options)

    class Panic(BaseException):
        pass

    class Failing:
        @staticmethod
        def from_json(text):
            raise Panic("not for me")

    sample = ["plain " * 20_000] * 30 + ["later: café"] + ["plain " * 20_000] * 30
    for fake, reason in ((Wrong, "its ids differ"), (Failing, "not for me")):
        monkeypatch.setattr("gigatoken.Tokenizer", fake)
        encoder, note = Encoders(bpe.tokenizer, bpe.info).choose(sample)
        assert encoder.name == "tokenizers"
        assert note.startswith("gigatoken is not used")
        assert reason in note
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    encoder, note = Encoders(bpe.tokenizer, bpe.info).choose(sample)
    assert (encoder.name, note) == ("tokenizers", "")


def test_a_package_that_fails_later_is_replaced(bpe, corpus, monkeypatch):
    encoders = Encoders(bpe.tokenizer, bpe.info)
    encoder, _ = encoders.choose(corpus[:5])
    assert encoder.name == "gigatoken"

    calls: list[int] = []

    def fail(self, texts):
        calls.append(len(texts))
        raise RuntimeError("out of luck")

    monkeypatch.setattr(GigatokenEncoder, "encode_chunk", fail)
    check(bpe, encoder, corpus[:5], True)
    check(bpe, encoder, corpus[:5], True)
    assert calls == [5]
    assert encoders.choose(corpus[:5]) == (encoders.library, "gigatoken is not used: out of luck")


def test_ctrl_c_is_not_a_failure_of_a_package(bpe, corpus, monkeypatch):
    """Rust code that calls Python treats KeyboardInterrupt as its own error, and continues."""
    import gigatoken

    real = gigatoken.Tokenizer.from_json

    def swallow(text):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("it cannot be loaded") from error
        return real(text)

    encoders = Encoders(bpe.tokenizer, bpe.info)
    with monkeypatch.context() as patched:
        patched.setattr("gigatoken.Tokenizer.from_json", swallow)
        with pytest.raises(KeyboardInterrupt):
            encoders.choose(corpus[:5])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    encoder, note = encoders.choose(corpus[:5])
    assert (encoder.name, note) == ("gigatoken", "")


def test_a_wrong_rule_is_found(bpe, corpus, monkeypatch):
    def wrong_rule(tokenizer, settings):
        right, follows = word_rule(tokenizer, settings)
        return lambda ids, lengths: right(ids, lengths) ^ (ids == ids[-1]), follows

    monkeypatch.setattr(choose_encoder, "word_rule", wrong_rule)
    encoders = Encoders(bpe.tokenizer, bpe.info)
    encoder, note = encoders.choose(corpus[:5])
    assert encoder is encoders.reference
    assert "word starts" in note
    check(bpe, encoder, corpus[:5], True)


def test_the_probe_is_bounded_and_prefers_what_is_not_ascii():
    long, foreign = "word " * 400_000, "word " * 200_000 + "é" + " word" * 200_000
    for sample in ([long], [foreign], [long] * 40, ["a"] * 5000 + [foreign] + ["b"] * 5000, []):
        texts = choose_encoder.probe(sample)
        assert sum(map(len, texts)) <= choose_encoder.PROBE_CHARACTERS
        assert len(texts) <= choose_encoder.PROBE_TEXTS
        assert (foreign in sample) == any("é" in text for text in texts)
    assert len(choose_encoder.probe([long])[0]) == choose_encoder.PROBE_CHARACTERS


def test_the_memory_for_cached_words_is_bounded(bpe, monkeypatch):
    import gigatoken

    def new_words(begin: int, count: int) -> str:
        words = (f"x{number:020b}q".replace("0", "j").replace("1", "k") for number in range(begin, begin + count))
        return " ".join(words)

    loads: list[str] = []
    real = gigatoken.Tokenizer.from_json
    monkeypatch.setattr("gigatoken.Tokenizer.from_json", lambda text: loads.append(text) or real(text))
    rule, _ = word_rule(bpe.tokenizer, json.loads(bpe.tokenizer.to_str()))
    GigatokenEncoder(json.loads(bpe.tokenizer.to_str()), rule)([new_words(0, 300)])  # the first use imports modules
    loads.clear()
    encoder = GigatokenEncoder(json.loads(bpe.tokenizer.to_str()), rule)
    encoder.cache_bytes = 32 << 20
    for _ in range(50):
        encoder([new_words(0, 300)])
    assert len(loads) == 1, "the same words need no more memory"
    batches = iter(range(40))  # the allocator may have memory left from other tests
    while len(loads) == 1:
        encoder([new_words(100_000 * next(batches), 100_000)])
    check(bpe, encoder, [new_words(0, 300)], True)


def test_nanotoken_takes_characters_that_only_newer_libraries_know(tmp_path):
    """It agrees with the tokenizers library on them; gigatoken does not."""
    pytest.importorskip("nanotoken")
    train_tokenizer(["the little ship sails"] * 20, "wordpiece", 60, tmp_path)
    encoders = Encoders(load(tmp_path), describe_tokenizer(tmp_path))
    encoder, note = encoders.choose(["the little ship"])
    assert (encoder.name, note) == ("nanotoken", "")
    encoder.safe = lambda texts: pytest.fail("the tokenizers library encodes them, which is slower")
    texts = [f"the{new}ship {new} sails" for new in "\u088f\ua7ce\U00010940\U0002b73a"]
    assert [part.tolist() for part in encoder(texts)[:2]] == [part.tolist() for part in encoders.library(texts)[:2]]
