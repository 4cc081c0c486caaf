"""Fast encoder packages: a wrong or failing one is skipped, and their memory is bounded."""

import json
import signal
import sys
from types import SimpleNamespace

import pytest
from tokenizers import pre_tokenizers

from data_prep.tokenizer import Encoders, choose_encoder, describe_tokenizer, load, train_tokenizer
from data_prep.tokenizer.encoders import GigatokenEncoder
from data_prep.tokenizer.word_starts import word_rule
from tests.support.small_tokenizers import MIXED, byte_level, changed, check, demo_texts, loaded


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return demo_texts()[::4]


@pytest.fixture(scope="module")
def bpe(corpus, tmp_path_factory) -> SimpleNamespace:
    pytest.importorskip("gigatoken")
    return loaded(byte_level(corpus), tmp_path_factory.mktemp("bpe"))


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
