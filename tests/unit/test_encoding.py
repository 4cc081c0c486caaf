"""Encoders: ids and word starts equal to the tokenizers library's, by every rule and package, or the library itself."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_prep.encoding import Encoders, base, choose
from data_prep.encoding.bytelevel import ByteLevelWords
from data_prep.encoding.gigatoken import DistinctWords, GigatokenEncoder
from data_prep.encoding.huggingface import HuggingFaceEncoder
from data_prep.encoding.words import MarkedWords, word_rule
from data_prep.tokenizer import describe, load

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "books.jsonl.zst"
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MIXED = "naïve 東京　ひらがな тест 12 ١٢ ½ e\u0301 it's we'll I'M they're 'd n’t — 😀👩‍👩‍👧  \t\n\n x\u00a0y ''s "
PIECES = [
    *MIXED,
    *SPECIALS,
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'RE",
    "'r",
    "'v",
    "'l",
    "''",
    " '",
    "  ",
    "\r\n",
]
PIECES += [
    "\x00",
    "\x1c",
    "\x85",
    "\u2028",
    "\u200b",
    "\ufeff",
    "|||IP|||",
    "##",
    "##a",
    "▁",
    "Ġ",
    "[CLS]",
    "the",
    " and",
]
TEXTS = st.lists(st.lists(st.one_of(st.sampled_from(PIECES), st.characters(codec="utf-8")), max_size=24).map("".join))


def demo_texts() -> list[str]:
    data = zstandard.ZstdDecompressor().stream_reader(DEMO.read_bytes(), read_across_frames=True).read()
    return [orjson.loads(line)["text"] for line in data.splitlines()]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return demo_texts()[::4]


def trained(model, trainer, pre_tokenizer, corpus, normalizer=None) -> dict[str, Any]:
    """The JSON of a small tokenizer."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([*corpus[:150], *[MIXED * 3] * 20], trainer)
    return json.loads(tokenizer.to_str())


def wordpiece(corpus) -> dict[str, Any]:
    trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=SPECIALS, show_progress=False)
    model, normalizer = models.WordPiece(unk_token="<unk>"), normalizers.BertNormalizer()
    return trained(model, trainer, pre_tokenizers.BertPreTokenizer(), corpus, normalizer)


def byte_level(corpus, use_regex=True) -> dict[str, Any]:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return trained(models.BPE(), trainer, pre_tokenizer, corpus if use_regex else corpus[:20])


def byte_pairs(state: dict[str, Any], pairs: list[str]) -> dict[str, Any]:
    """A byte-level tokenizer of bytes and these pairs, so that contractions and characters are spread over tokens."""
    vocab = {token: id for token, id in state["model"]["vocab"].items() if id < len(SPECIALS) + 256}
    merges = [[character.replace(" ", "Ġ") for character in pair] for pair in pairs]
    vocab |= {"".join(merge): len(vocab) + number for number, merge in enumerate(merges)}
    return state | {"model": state["model"] | {"vocab": vocab, "merges": merges}}


def unigram(corpus) -> dict[str, Any]:
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=SPECIALS, unk_token="<unk>", initial_alphabet=["▁"], show_progress=False
    )
    return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), corpus[:80], normalizers.NFKC())


def sentencepiece_bpe(corpus) -> dict[str, Any]:
    """With bytes for characters outside the vocabulary."""
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=[*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=["▁"],
        show_progress=False,
    )
    state = trained(models.BPE(), trainer, pre_tokenizers.Metaspace(), corpus)
    state["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIALS]
    return state


def changed(state: dict[str, Any], added=(), **components) -> dict[str, Any]:
    tokenizer = Tokenizer.from_str(json.dumps(state))
    for name, component in components.items():
        setattr(tokenizer, name, component)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return json.loads(tokenizer.to_str())


def all_tokenizers(corpus) -> dict[str, dict[str, Any]]:
    bert, bpe, pieces, sentencepiece = wordpiece(corpus), byte_level(corpus), unigram(corpus), sentencepiece_bpe(corpus)
    prefix = pre_tokenizers.ByteLevel(add_prefix_space=True)
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # as Llama 2's
    return {
        "bert": bert,
        "wordpiece-words": changed(bert, pre_tokenizer=pre_tokenizers.Whitespace()),
        "bpe": bpe,
        "bpe-prefix": changed(bpe, pre_tokenizer=prefix),
        "bpe-nfc-added": changed(
            bpe, normalizer=normalizers.NFC(), added=["  ", "    ", "|||IP|||"]
        ),  # as ModernBERT's
        "bpe-prefix-added": changed(bpe, pre_tokenizer=prefix, added=["  ", "|||IP|||"]),
        "bpe-lowercase": changed(bpe, normalizer=normalizers.Lowercase()),
        "bpe-bytes": byte_pairs(bpe, ["'r", "'l", "'v", "rx", " '", "  "]),
        "bpe-whole": byte_level(corpus, use_regex=False),
        "unigram": pieces,
        "unigram-strip": changed(
            pieces, normalizer=normalizers.Strip(), pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never")
        ),
        "unigram-words": changed(pieces, pre_tokenizer=words),
        "sentencepiece-bpe": sentencepiece,
        "sentencepiece-whole": changed(sentencepiece, normalizer=marks) | {"pre_tokenizer": None},
    }


NAMES = [
    "bert",
    "wordpiece-words",
    "bpe",
    "bpe-prefix",
    "bpe-nfc-added",
    "bpe-prefix-added",
    "bpe-lowercase",
    "bpe-whole",
]
NAMES += ["bpe-bytes", "unigram", "unigram-strip", "unigram-words", "sentencepiece-bpe", "sentencepiece-whole"]
FOLLOW_WORD_IDS = [name for name in NAMES if "whole" not in name]
FAST = {"bert": "nanotoken", "sentencepiece-bpe": "gigatoken", "sentencepiece-whole": "gigatoken"}
FAST |= dict.fromkeys(("bpe", "bpe-bytes", "bpe-prefix", "bpe-nfc-added", "bpe-prefix-added"), "gigatoken")
SLOW = {"wordpiece-words": "nanotoken is not used: its vocabulary does not tell where words begin"}
SLOW |= {"bpe-lowercase": "gigatoken is not used: Unsupported normalizer type: Lowercase", "unigram": ""}
SLOW |= {
    "bpe-whole": "gigatoken is not used: its ids differ from the tokenizers library's",
    "unigram-words": "",
    "unigram-strip": "",
}


@pytest.fixture(scope="module")
def tokenizers(corpus, tmp_path_factory) -> dict[str, SimpleNamespace]:
    """By name: the tokenizer as loaded from its folder, its description, and its encoders."""
    made = {}
    for name, state in all_tokenizers(corpus).items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "tokenizer.json").write_text(json.dumps(state))
        roles = dict(zip(("cls", "pad", "sep", "unk", "mask"), SPECIALS, strict=True))
        config = {f"{role}_token": token for role, token in roles.items()}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer, info = load(folder), describe(folder)
        made[name] = SimpleNamespace(tokenizer=tokenizer, info=info, encoders=Encoders(tokenizer, info))
    return made


def expected(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[int], list[int], list[bool]]:
    """One text at a time, and word starts by a plain loop over word_ids."""
    ids, lengths, starts = [], [], []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids += encoding.ids
        lengths.append(len(encoding.ids))
        before: int | None = -1
        for word in encoding.word_ids:
            starts.append(word != before)
            before = word
    return ids, lengths, starts


def check(made: SimpleNamespace, encoder, texts: list[str], follows: bool) -> None:
    ids, lengths, starts = encoder(texts)
    expected_ids, expected_lengths, expected_starts = expected(made.tokenizer, texts)
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    assert ids.tolist() == expected_ids
    assert lengths.tolist() == expected_lengths
    if made.info.continuation_prefix:
        assert starts is None
        tokens = [made.tokenizer.id_to_token(id) for id in expected_ids]
        begins = [not token.startswith(made.info.continuation_prefix) for token in tokens]
        assert begins == expected_starts
    elif follows:
        assert starts.dtype == bool
        assert starts.tolist() == expected_starts


@pytest.mark.parametrize("name", NAMES)
def test_real_text(tokenizers, corpus, name):
    made, texts = tokenizers[name], corpus[-200:]
    encoder, _ = made.encoders.choose(texts)
    check(made, encoder, texts, name in FOLLOW_WORD_IDS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(texts=TEXTS)
@example(
    texts=[
        "",
        "it's",
        "'",
        "",
        "s",
        "'re",
        "'r",
        "e",
        "'l x",
        " 's",
        "\n's",
        "\n\n 's",
        "a \n",
        "a\n\n|||IP|||b",
        "",
        "a'",
        "re",
        "a'rx",
        "a'rea",
    ]
)
@example(texts=[MIXED, "  |||IP|||'s x|||IP|||", "'|||IP|||s", "\u3000\u3000a \u3000 \u3000", "東 京\u3000"])
def test_any_text(tokenizers, name, texts):
    made = tokenizers[name]
    encoder, _ = made.encoders.choose([MIXED])
    check(made, encoder, texts, name in FOLLOW_WORD_IDS)
    check(made, made.encoders._library, texts, name in FOLLOW_WORD_IDS)


@pytest.mark.parametrize("name", NAMES)
def test_the_fastest_is_chosen(tokenizers, corpus, name):
    encoder, note = tokenizers[name].encoders.choose(corpus)
    package = FAST.get(name) or SLOW[name].partition(" ")[0]
    if package:
        pytest.importorskip(package)
    assert (encoder.name, note) == (FAST.get(name, "tokenizers"), SLOW.get(name, ""))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
@example(texts=["one\ntwo\n\nthree four  five\tsix\nseven", "eight nine|||IP|||ten eleven"])
def test_pieces_do_not_change_the_encoding(tokenizers, name, texts):
    made = tokenizers[name]
    for encoder in (made.encoders._library, made.encoders._reference):
        whole = encoder(texts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "CHUNK_CHARACTERS", 3)
            for ours, theirs in zip(encoder(texts), whole, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_long_texts_are_cut():
    cut = base.cut_pattern(byte_level(["a"]))
    seen: list[list[str]] = []

    def encode(texts):
        seen.append(list(texts))
        lengths = np.array([len(text) for text in texts])
        return np.zeros(lengths.sum(), np.uint32), lengths, None

    _, lengths, _ = base.encode_in_chunks(["one two\nthree", "", "four five"], cut, encode, size=4)
    assert seen == [["one two"], ["\nthree"], ["", "four"], [" five"]]
    assert lengths.tolist() == [13, 0, 9]


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


def test_word_rules_are_those_meant(tokenizers):
    kinds = {}
    for name, made in tokenizers.items():
        if name not in ("bert", "wordpiece-words"):
            rule, follows = word_rule(made.tokenizer, json.loads(made.tokenizer.to_str()))
            kinds[name] = type(rule)
            assert follows == (name in FOLLOW_WORD_IDS)
    assert {name for name, kind in kinds.items() if kind is ByteLevelWords} == {
        "bpe", "bpe-bytes", "bpe-prefix", "bpe-nfc-added", "bpe-prefix-added", "bpe-lowercase"
    }  # fmt: skip
    assert set(kinds.values()) == {ByteLevelWords, MarkedWords}


def test_every_character_has_the_class_that_the_pattern_gives_it(tokenizers):
    """All code points but surrogates, each alone between letters, so that a wrong class moves a boundary."""
    made = tokenizers["bpe"]
    points = [*range(0x3400), *range(0x3400, 0xD800, 97), *range(0xE000, 0x110000, 97)]
    texts = ["".join(f"{chr(point)}a{chr(point)} " for point in points[at::8]) for at in range(8)]
    check(made, made.encoders._library, texts, True)


def test_the_prefix_tells_word_starts_only_where_no_word_can_begin_with_it(tokenizers, tmp_path):
    assert tokenizers["bert"].info.continuation_prefix == "##"
    assert tokenizers["wordpiece-words"].info.continuation_prefix is None
    state = json.loads(tokenizers["bert"].tokenizer.to_str())
    state["added_tokens"].append(state["added_tokens"][0] | {"id": 1500, "content": "##mark", "special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    assert describe(tmp_path).continuation_prefix is None


def test_other_patterns_are_left_to_the_library(corpus, tmp_path):
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    state = changed(byte_level(corpus[:20]), pre_tokenizer=digits)
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    made = SimpleNamespace(tokenizer=load(tmp_path), info=describe(tmp_path))
    encoder, note = Encoders(made.tokenizer, made.info).choose(corpus[:20])
    assert encoder.name == "tokenizers"
    pytest.importorskip("gigatoken")
    assert "gigatoken is not used: word starts" in note
    assert "Digits" in note
    check(made, encoder, [MIXED, "in 1984 's"], True)


@pytest.fixture
def bpe(tokenizers) -> SimpleNamespace:
    pytest.importorskip("gigatoken")
    return tokenizers["bpe"]


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

    monkeypatch.setattr(GigatokenEncoder, "_encode_chunk", fail)
    check(bpe, encoder, corpus[:5], True)
    check(bpe, encoder, corpus[:5], True)
    assert calls == [5]
    assert encoders.choose(corpus[:5]) == (encoders._library, "gigatoken is not used: out of luck")


def test_a_wrong_rule_is_found(bpe, corpus):
    encoders = Encoders(bpe.tokenizer, bpe.info)
    right = encoders._rule
    encoders._rule = lambda ids, lengths: right(ids, lengths) ^ (ids == ids[-1])
    encoder, note = encoders.choose(corpus[:5])
    assert encoder is encoders._reference
    assert "word starts" in note
    check(bpe, encoder, corpus[:5], True)


def test_the_probe_is_bounded_and_prefers_what_is_not_ascii():
    long, foreign = "word " * 400_000, "word " * 200_000 + "é" + " word" * 200_000
    for sample in ([long], [foreign], [long] * 40, ["a"] * 5000 + [foreign] + ["b"] * 5000, []):
        texts = choose.probe(sample)
        assert sum(map(len, texts)) <= choose.PROBE_CHARACTERS
        assert len(texts) <= choose.PROBE_TEXTS
        assert (foreign in sample) == any("é" in text for text in texts)
    assert len(choose.probe([long])[0]) == choose.PROBE_CHARACTERS


def test_the_number_of_words_kept_is_bounded(bpe, monkeypatch):
    monkeypatch.setattr("data_prep.encoding.gigatoken.MAX_WORDS", 1 << 10)
    encoder = GigatokenEncoder(json.loads(bpe.tokenizer.to_str()), bpe.encoders._rule)
    first = encoder._tokenizer

    def new_words(begin: int, count: int) -> Iterator[str]:
        return (f"x{number:07b}q".replace("0", "j").replace("1", "k") for number in range(begin, begin + count))

    for _ in range(50):
        encoder([" ".join(new_words(0, 300))])
    assert encoder._tokenizer is first, "the same words again cost nothing"
    for at in range(20):
        texts = [" ".join(new_words(300 * at, 300))]
        check(bpe, encoder, texts, True)
    assert encoder._tokenizer is not first


@pytest.mark.parametrize("share, full", [(0.8, False), (1.25, True)])
def test_distinct_words(share, full):
    words = DistinctWords(1 << 14)
    ids = np.stack([np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)], 1)
    for batch in range(int(share * (1 << 14)) // 1000):
        ids[:, 1] = np.arange(batch * 1000, batch * 1000 + 1000)
        for _ in range(3):
            words.add(ids.reshape(-1), np.tile([True, False], 1000))
    for _ in range(5):
        words.add(ids.reshape(-1), np.tile([True, False], 1000))
    assert words.full == full


def test_texts_without_tokens(tokenizers):
    for made in tokenizers.values():
        for encoder in (made.encoders.choose(["a"])[0], HuggingFaceEncoder(made.tokenizer, "word_ids")):
            for texts in ([], [""], ["", "", ""]):
                ids, lengths, starts = encoder(texts)
                assert len(ids) == 0
                assert lengths.tolist() == [0] * len(texts)
                assert starts is None or (len(starts) == 0 and starts.dtype == bool)
