"""Train a WordPiece, BPE or character tokenizer; fetch, load and describe any Hugging Face fast tokenizer."""

import json
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from data_prep.common.errors import UnusableInput, UserError, library_errors, working_directory
from data_prep.common.files import atomic_folder, make_folder, write_file, write_json
from data_prep.common.reading import json_or_none, open_regular, read_below, read_json
from data_prep.common.urls import hub_hint
from data_prep.format import TokenizerInfo
from data_prep.storage import TOKENIZER_FILES, cached_folder, fetch_from_hub, hub_parts, is_hub_name
from data_prep.tokenizer.long_words import cut_runs, cut_words, plain
from data_prep.tokenizer.slow_tokenizers import ESM, advice, esm_config, esm_tokenizer
from data_prep.tokenizer.text_growth import check_growth

_HUB_RECORD = "hub.json"
LEAST_ALPHABET = 1000  # characters that a WordPiece vocabulary gets first, or a quarter of it
COVERAGE = 0.9999  # the share of the text whose characters it gets first, if they are more, as in Chinese
_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_BERT_ENDS = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # with their places in _BERT as ids
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    out: Path,
    lowercase: bool = True,
    strip_accents: bool = False,
    check: Callable[[Tokenizer], None] = lambda tokenizer: None,
) -> int:
    """Train a tokenizer, save it in `out` for `AutoTokenizer.from_pretrained`, and return its vocabulary size.

    `texts` is iterated over several times; `out` must be new or empty. `wordpiece` is like BERT's (`lowercase` like
    bert-uncased, but marks stay without `strip_accents`), `bpe` is byte-level like RoBERTa's, and `characters` has a
    token for each character, which is also a word. All normalize text to NFC, and cut long words. The same texts give
    the same bytes. If `check` raises an error for the trained tokenizer, nothing is saved. Raises UserError for an
    empty corpus, and for a vocabulary too small for its characters.
    """
    if not any(text.strip() for text in texts):
        raise UserError("The input has no text to train a tokenizer on. Check --input and --text-field.")
    if kind == "wordpiece":
        tokenizer = _wordpiece(texts, vocab_size, lowercase, strip_accents)
    else:
        tokenizer = _bpe(texts, vocab_size) if kind == "bpe" else _characters(texts, vocab_size)
    check(tokenizer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *["token_type_ids"] * (kind == "wordpiece"), "attention_mask"],
        **{f"{name}_token": token for name, token in (_ROBERTA if kind == "bpe" else _BERT).items()},
    }
    with atomic_folder(out) as folder:
        write_json(folder / "tokenizer_config.json", config)
        write_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()))
    return tokenizer.get_vocab_size()


def _wordpiece(texts: Iterable[str], vocab_size: int, lowercase: bool, strip_accents: bool) -> Tokenizer:
    specials = list(_BERT.values())
    tokenizer = Tokenizer(models.WordPiece(unk_token=_BERT["unk"]))
    bert = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), bert])
    tokenizer.pre_tokenizer = cut_words(pre_tokenizers.BertPreTokenizer())
    initial, continuing, rare = _alphabets(texts, tokenizer, min(LEAST_ALPHABET, vocab_size // 4))
    least = len(specials) + len(initial) + len(continuing)
    if vocab_size < least:
        raise UnusableInput(
            f"--vocab-size {vocab_size} cannot hold the text's {least} characters and special tokens; use {least} or "
            "more, or --kind bpe."
        )
    # The trainer numbers ## characters in the order of a hash table and breaks ties between merges by number, so two
    # runs would differ (tokenizers issue 1794). As special tokens, they have fixed numbers.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*specials, *continuing],
        initial_alphabet=initial,
        limit_alphabet=len(initial),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    for token in rare[: vocab_size - len(vocabulary)]:  # where the text has no more pairs to join
        vocabulary[token] = len(vocabulary)
    trained = Tokenizer(models.WordPiece(vocabulary, unk_token=_BERT["unk"]))
    trained.normalizer, trained.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    trained.decoder = decoders.WordPiece()
    trained.post_processor = _BERT_ENDS
    trained.add_special_tokens(specials)
    return trained


def alphabet_size(counts: Counter[str]) -> int:
    """How many of the characters, the most frequent first, cover a share of COVERAGE of the text."""
    covered = np.cumsum(sorted(counts.values(), reverse=True))
    return 1 + int(np.searchsorted(covered, COVERAGE * covered[-1])) if counts else 0


def _alphabets(texts: Iterable[str], tokenizer: Tokenizer, least: int) -> tuple[list[str], list[str], list[str]]:
    """The frequent characters, the ## tokens of those that occur inside words, both sorted, and the rarer ones' tokens.

    Rarer characters come in the order of their frequency. At least `least` characters are frequent.
    """
    words = Counter(word for text in texts for word in text.split())
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in words.items():
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(word)):
            inside.update(piece[1:])
            for character in piece:
                counts[character] += count
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    limit = max(least, alphabet_size(counts))
    frequent = sorted(ordered[:limit])
    rare = [token for char in ordered[limit:] for token in (char, *[f"##{char}"] * (char in inside))]
    return frequent, [f"##{character}" for character in frequent if character in inside], rare


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    specials = list(_ROBERTA.values())
    least = 256 + len(specials)
    if vocab_size < least:
        raise UnusableInput(
            f"--vocab-size {vocab_size} cannot hold the 256 bytes and special tokens; use {least} or more."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cut_runs(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", specials.index("</s>")), ("<s>", specials.index("<s>")), add_prefix_space=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, lstrip=token == "<mask>", normalized=False) for token in specials],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _characters(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    specials = list(_BERT.values())
    counts, normalizer = Counter[str](), normalizers.NFC()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    vocabulary = [*specials, *sorted(frequent[: max(0, vocab_size - len(specials))])]
    tokenizer = Tokenizer(models.WordLevel({token: id for id, token in enumerate(vocabulary)}, unk_token=_BERT["unk"]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = _BERT_ENDS
    tokenizer.add_special_tokens(specials)
    return tokenizer


_CREATE = "Create one with `maskwright tokenizer train`, or correct --tokenizer."


def fetch(value: str, into: Path, kept: Path | None = None) -> Path:
    """The folder of the tokenizer that `value` names: a folder, a tokenizer.json, or hub:OWNER/NAME[@REVISION].

    A folder is returned unchanged. Otherwise the tokenizer's files are copied to `into`, which is returned; of a name
    of the Hub, hub.json there or in `kept` has the commit, which the same name keeps. ESM-2's vocab.txt is converted.
    Raises UserError if there is no such tokenizer, and for a repository without a fast tokenizer.
    """
    path = Path(value)
    if path.is_dir():
        return _converted(path, into) or path
    if path.is_file():
        with library_errors(f"{value} is not a tokenizer.json", "Name a tokenizer.json, or its folder."):
            Tokenizer.from_file(value)
        return _copy({"tokenizer.json": path.resolve()}, into)
    if (json_or_none((kept or into) / _HUB_RECORD, dict[str, str]) or {}).get("name") == value:
        return kept or into
    if not is_hub_name(value):
        hint = hub_hint(value, "tokenizer")
        raise UnusableInput(f"No tokenizer at {value}{working_directory(value)}. {_CREATE}{hint}")
    pinned = fetch_from_hub(value, weights=False)
    folder = cached_folder(pinned, weights=False)
    if not _converted(folder, into):
        if not (folder / "tokenizer.json").is_file():
            how = advice(hub_parts(value)[0])
            raise UnusableInput(f"{value} has no fast tokenizer (tokenizer.json); {how}.")
        _copy({name: (folder / name).resolve() for name in TOKENIZER_FILES if (folder / name).is_file()}, into)
    write_json(into / _HUB_RECORD, {"name": value, "pinned": str(pinned)})
    return into


def _converted(folder: Path, into: Path) -> Path | None:
    """`into` with a tokenizer.json made from ESM-2's vocab.txt; None for another tokenizer."""
    if (folder / "tokenizer.json").is_file() or (tokenizer := esm_tokenizer(folder)) is None:
        return None
    make_folder(into)
    (into / _HUB_RECORD).unlink(missing_ok=True)
    write_json(into / "tokenizer_config.json", esm_config())
    write_json(into / "tokenizer.json", json.loads(tokenizer.to_str()))
    return into


def copy_files(source: Path, target: Path) -> Path:
    """Copy the tokenizer's files, and no others, into a new or existing folder, and return it.

    Raises UserError for a symbolic link, which can lead to any file.
    """
    return _copy({name: source / name for name in TOKENIZER_FILES if (source / name).is_file()}, target)


def _copy(sources: dict[str, Path], into: Path) -> Path:
    make_folder(into)
    (into / _HUB_RECORD).unlink(missing_ok=True)
    for name in TOKENIZER_FILES:
        if name not in sources:
            (into / name).unlink(missing_ok=True)
            continue
        write_file(into / name, read_below(sources[name].parent, sources[name].name))
    return into


def describe_tokenizer(folder: Path) -> TokenizerInfo:
    """The description of the tokenizer in `folder` for the manifest of a data set.

    Raises UserError if there is no fast tokenizer, if it has no pad, cls, sep or mask token, and if its mask token or
    its pad and cls token are the same as another.
    """
    if not folder.is_dir():
        raise UnusableInput(f"There is no tokenizer folder {folder}.")
    tokenizer = load(folder)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    special_ids = _special_ids(folder, vocab, {token.content for token in added.values() if token.special})
    for name in ("mask", "cls", "sep", "pad"):
        if name not in special_ids:
            raise UnusableInput(
                f"The tokenizer in {folder} has no {name} token ([{name.upper()}]), which masked language modelling "
                "needs; take another, or train one with `maskwright tokenizer train`."
            )
    info = TokenizerInfo.of_files(
        folder,
        [name for name in TOKENIZER_FILES if (folder / name).is_file()],
        vocab_size=max(vocab.values()) + 1,
        special_ids=special_ids,
        all_special_ids=sorted({*special_ids.values(), *(id for id, token in added.items() if token.special)}),
        continuation_prefix=_continuation_prefix(json.loads(tokenizer.to_str())),
    )
    info.check_roles()
    return info


def _continuation_prefix(settings: dict[str, Any]) -> str | None:
    """The prefix of WordPiece if no word can begin with it: BERT's pre-tokenizer splits off punctuation."""
    prefix = settings["model"].get("continuing_subword_prefix") or ""
    if (
        settings["model"]["type"] == "WordPiece"
        and (plain(settings)["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and len(prefix) > 1
        and prefix[0] in string.punctuation
        and not any(token["content"].startswith(prefix) for token in settings["added_tokens"] if not token["special"])
        and not settings["model"]["unk_token"].startswith(prefix)
    ):
        return prefix
    return None


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a folder. It encodes whole documents without padding, and special tokens in text as text."""
    path = folder / "tokenizer.json"
    tokenizer: Tokenizer | None
    if path.is_file():
        open_regular(path).close()
        with library_errors(f"{path} is not a valid tokenizer", "Copy it again."):
            tokenizer = Tokenizer.from_file(str(path))
    elif (tokenizer := esm_tokenizer(folder)) is None:
        raise UnusableInput(f"{folder} has no tokenizer.json; {advice(str(folder))}.")
    check_growth(tokenizer, folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None  # it would make ids random
    return tokenizer


def _special_ids(folder: Path, vocab: dict[str, int], specials: set[str]) -> dict[str, int]:
    """Ids by role, from the configuration in the folder, or else by the usual names of special tokens."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= read_json(folder / name, dict[str, Any])
    ids = {}
    for name in _BERT:
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token is None:
            token = next((usual for usual in (_BERT[name], _ROBERTA[name], ESM[name]) if usual in specials), None)
        if isinstance(token, str) and token in vocab:
            ids[name] = vocab[token]
    return ids
