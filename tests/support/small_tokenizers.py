"""Small tokenizers of every kind, and the ids and word starts that an encoder must give for them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import zstandard
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_prep.tokenizer import Encoders, describe_tokenizer, load
from tests.support.forked import ROOT

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_TRAINING: dict[str, Any] = {"special_tokens": SPECIALS, "show_progress": False}
MIXED = "naïve 東京　ひらがな тест 12 ١٢ ½ e\u0301 it's we'll I'M they're 'd n’t — 😀👩‍👩‍👧  \t\n\n x\u00a0y ''s "
_ENDS = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
PATTERNS = {  # of Llama 3, GPT-4o and GPT-2
    "llama-3": rf"{_SHORT}|{_BEFORE}\p{{L}}+" + _ENDS.replace("/", ""),
    "o200k": f"{_BEFORE}{_UPPER}*{_LOWER}+{_SHORT}?|{_BEFORE}{_UPPER}+{_LOWER}*{_SHORT}?{_ENDS}",
    "llama-3-newline": rf"{_SHORT}|{_BEFORE}\p{{L}}+" + _ENDS.replace("/", "").replace(r"\s*[\r\n]+", r"\s*[\r\n]"),
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def demo_texts() -> list[str]:
    compressed = (ROOT / "configs/demo/books.jsonl.zst").read_bytes()
    data = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True).read()
    return [orjson.loads(line)["text"] for line in data.splitlines()]


def trained(model, trainer, pre_tokenizer, corpus, normalizer=None) -> dict[str, Any]:
    """The JSON of a small tokenizer."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([*corpus[:150], *[MIXED * 3] * 20], trainer)
    return json.loads(tokenizer.to_str())


def wordpiece(corpus) -> dict[str, Any]:
    trainer = trainers.WordPieceTrainer(vocab_size=1500, **_TRAINING)
    model, normalizer = models.WordPiece(unk_token="<unk>"), normalizers.BertNormalizer()
    return trained(model, trainer, pre_tokenizers.BertPreTokenizer(), corpus, normalizer)


def byte_level(corpus, use_regex=True) -> dict[str, Any]:
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **_TRAINING)
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return trained(models.BPE(), trainer, pre_tokenizer, corpus if use_regex else corpus[:20])


def byte_pairs(state: dict[str, Any], pairs: list[str]) -> dict[str, Any]:
    """A byte-level tokenizer of bytes and these pairs, so that contractions and characters are spread over tokens."""
    vocab = {token: id for token, id in state["model"]["vocab"].items() if id < len(SPECIALS) + 256}
    merges = [[character.replace(" ", "Ġ") for character in pair] for pair in pairs]
    vocab |= {"".join(merge): len(vocab) + number for number, merge in enumerate(merges)}
    return state | {"model": state["model"] | {"vocab": vocab, "merges": merges}}


def unigram(corpus) -> dict[str, Any]:
    trainer = trainers.UnigramTrainer(vocab_size=600, unk_token="<unk>", initial_alphabet=["▁"], **_TRAINING)
    return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), corpus[:80], normalizers.NFKC())


def sentencepiece_bpe(corpus) -> dict[str, Any]:
    """With bytes for characters outside the vocabulary."""
    specials = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=["▁"], **_TRAINING | {"special_tokens": specials})
    state = trained(models.BPE(), trainer, pre_tokenizers.Metaspace(), corpus)
    state["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIALS]
    return state


def changed(state: dict[str, Any], added=(), **components) -> dict[str, Any]:
    """With other components, and with tokens that are found before all else."""
    tokenizer = Tokenizer.from_str(json.dumps(state))
    for name, component in components.items():
        setattr(tokenizer, name, component)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return json.loads(tokenizer.to_str())


def with_specials_beyond(state: dict[str, Any]) -> dict[str, Any]:
    """With a special token and then an added token whose ids are beyond the vocabulary, as DeBERTa's mask."""
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(["<extra>"])
    tokenizer.add_tokens([AddedToken("|||IP|||", normalized=False)])
    return json.loads(tokenizer.to_str())


def all_tokenizers(corpus) -> dict[str, dict[str, Any]]:
    bert, bpe, pieces, sentencepiece = wordpiece(corpus), byte_level(corpus), unigram(corpus), sentencepiece_bpe(corpus)
    prefix = pre_tokenizers.ByteLevel(add_prefix_space=True)
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = {
        name: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_alone])
        for name, pattern in PATTERNS.items()
    }
    pairs = ["'r", "'l", "'S", "rx", " '", "  ", "Ċ ", "12"]
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # as Llama 2's
    return {
        "bert": bert,
        "wordpiece-words": changed(bert, pre_tokenizer=pre_tokenizers.Whitespace()),
        "bpe": bpe,
        "bpe-prefix": changed(bpe, pre_tokenizer=prefix),
        # as ModernBERT's
        "bpe-nfc-added": changed(bpe, normalizer=normalizers.NFC(), added=["  ", "    ", "|||IP|||"]),
        "bpe-prefix-added": changed(bpe, pre_tokenizer=prefix, added=["  ", "|||IP|||"]),
        "bpe-lowercase": changed(bpe, normalizer=normalizers.Lowercase()),
        "llama-3": changed(byte_pairs(bpe, pairs), pre_tokenizer=split["llama-3"]),
        "llama-3-added": changed(bpe, pre_tokenizer=split["llama-3"], added=["  ", "|||IP|||"]),
        "o200k": changed(bpe, pre_tokenizer=split["o200k"]),
        "llama-3-newline": changed(bpe, pre_tokenizer=split["llama-3-newline"]),
        "split-gpt-2": changed(bpe, pre_tokenizer=split["gpt-2"]),
        "bpe-strip": changed(bpe, normalizer=normalizers.Strip()),
        "bpe-bytes": byte_pairs(bpe, ["'r", "'l", "'v", "rx", " '", "  "]),
        "bpe-whole": byte_level(corpus, use_regex=False),
        "unigram": pieces,
        "unigram-added": with_specials_beyond(pieces),
        "unigram-strip": changed(
            pieces, normalizer=normalizers.Strip(), pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never")
        ),
        "unigram-words": changed(pieces, pre_tokenizer=words),
        "sentencepiece-bpe": sentencepiece,
        "sentencepiece-whole": changed(sentencepiece, normalizer=marks) | {"pre_tokenizer": None},
    }


def loaded(state: dict[str, Any], folder: Path) -> SimpleNamespace:
    """The tokenizer as loaded from `folder`, where its files are put, its description, and its encoders."""
    (folder / "tokenizer.json").write_text(json.dumps(state))
    roles = dict(zip(("cls", "pad", "sep", "unk", "mask"), SPECIALS, strict=True))
    config = {f"{role}_token": token for role, token in roles.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    info, tokenizer = describe_tokenizer(folder), load(folder)
    encoders = Encoders(tokenizer, info)
    if state["model"]["type"] == "Unigram":  # the library gives special ids for text that spells them
        specials = {token["content"] for token in state["added_tokens"] if token["special"]}
        text = json.dumps(state)
        for special in specials:
            text = text.replace(json.dumps(special), json.dumps("\ue000" * 9 + special))
        tokenizer = Tokenizer.from_str(text)
        tokenizer.encode_special_tokens = True
    return SimpleNamespace(tokenizer=tokenizer, info=info, encoders=encoders)


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
    """Assert that an encoder equals the library; `follows`: its word starts equal word_ids."""
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
