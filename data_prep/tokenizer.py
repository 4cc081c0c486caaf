"""Train a WordPiece or byte-level BPE tokenizer; load any Hugging Face fast tokenizer folder and encode with it."""

import hashlib
import itertools
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from data_prep.errors import UserError
from data_prep.files import sha256_file, write_json
from data_prep.format import SPECIAL_NAMES, TokenizerInfo

KINDS = ("wordpiece", "bpe")
FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
PIECE_CHARACTERS = 1 << 20  # longer documents are encoded in pieces: an Encoding takes some 30 times its text
PARITY_CHARACTERS = 1 << 20
_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_CUT = re.compile(r"(?<=\S) (?=\S)")


def train(texts: Iterable[str], kind: str, vocab_size: int, out: Path, lowercase: bool = True) -> int:
    """Train a tokenizer on `texts` and save it as a folder for `AutoTokenizer.from_pretrained`; returns its size.

    `wordpiece` is as BERT's (`lowercase` as in bert-uncased), `bpe` byte-level as RoBERTa's. The same texts give the
    same bytes. Raises UserError for an empty corpus or a vocabulary too small for its characters.
    """
    if kind == "bpe" and vocab_size < (least := 256 + len(_ROBERTA)):
        raise UserError(f"--vocab-size {vocab_size} cannot hold the 256 bytes and special tokens; use {least} or more.")
    tokenizer, trainer, config = _wordpiece(vocab_size, lowercase) if kind == "wordpiece" else _bpe(vocab_size)
    iterator = (text for text in texts if text.strip())
    first = next(iterator, None)
    if first is None:
        raise UserError("The input has no text to train a tokenizer on; check --input and --text-field.")
    tokenizer.train_from_iterator(itertools.chain([first], iterator), trainer)
    size = tokenizer.get_vocab_size()
    if size > vocab_size:
        raise UserError(
            f"The text's characters alone need {size} tokens; raise --vocab-size from {vocab_size} to that."
        )
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "tokenizer_config.json", config)
    write_json(out / "tokenizer.json", json.loads(tokenizer.to_str()))
    return size


def _wordpiece(vocab_size: int, lowercase: bool) -> tuple[Tokenizer, Any, dict[str, Any]]:
    tokenizer = Tokenizer(models.WordPiece(unk_token=_BERT["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = list(_BERT.values())
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", specials.index("[SEP]")), ("[CLS]", specials.index("[CLS]"))
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=specials, show_progress=sys.stderr.isatty()
    )
    return tokenizer, trainer, _config(_BERT, ["input_ids", "token_type_ids", "attention_mask"])


def _bpe(vocab_size: int) -> tuple[Tokenizer, Any, dict[str, Any]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = list(_ROBERTA.values())
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", specials.index("</s>")), ("<s>", specials.index("<s>")), add_prefix_space=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, lstrip=token == "<mask>", normalized=False) for token in specials],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=sys.stderr.isatty(),
    )
    return tokenizer, trainer, _config(_ROBERTA, ["input_ids", "attention_mask"])


def _config(tokens: dict[str, str], inputs: list[str]) -> dict[str, Any]:
    named = {f"{name}_token": token for name, token in tokens.items()}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs, **named}


def describe(folder: Path) -> TokenizerInfo:
    """What a data set's manifest says of the tokenizer in `folder`.

    Raises UserError where the folder is missing, holds no fast tokenizer, or has no pad, cls, sep or mask token.
    """
    if not folder.is_dir():
        raise UserError(f"There is no tokenizer folder {folder}.")
    tokenizer = load(folder)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    special_ids = _special_ids(folder, vocab, {token.content for token in added.values() if token.special})
    for name in ("mask", "cls", "sep", "pad"):
        if name not in special_ids:
            raise UserError(
                f"The tokenizer in {folder} has no {name} token ([{name.upper()}]), which masked language modelling "
                "needs; take another, or train one with `maskwright tokenizer train`."
            )
    files = {name: sha256_file(folder / name) for name in FILES if (folder / name).is_file()}
    lines = "".join(f"{digest}  {name}\n" for name, digest in files.items())
    model = json.loads(tokenizer.to_str())["model"]
    return TokenizerInfo(
        sha256=hashlib.sha256(lines.encode()).hexdigest(),
        files=files,
        vocab_size=max(vocab.values()) + 1,
        special_ids=special_ids,
        all_special_ids=sorted({*special_ids.values(), *(id for id, token in added.items() if token.special)}),
        continuation_prefix=model["continuing_subword_prefix"] or None if model["type"] == "WordPiece" else None,
    )


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, set to encode whole documents, without padding, and specials spelled out as text."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no tokenizer.json; save a fast tokenizer there with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for a file that it cannot read
        raise UserError(f"{path} is not a valid tokenizer: {error}.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def copy_files(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, and no others, into a new or existing folder."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _special_ids(folder: Path, vocab: dict[str, int], specials: set[str]) -> dict[str, int]:
    """Ids by role, from the folder's configuration, else by the usual names among the tokens marked special."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            try:
                config |= json.loads((folder / name).read_bytes())
            except (ValueError, TypeError) as error:
                raise UserError(f"{folder / name} is not a valid JSON object: {error}.") from error
    found = {}
    for name in SPECIAL_NAMES:
        token = config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        usual = [candidate for candidate in (_BERT[name], _ROBERTA[name]) if candidate in specials]
        if token is None and usual:
            token = usual[0]
        if token in vocab:
            found[name] = vocab[token]
    return found


class Encoder(Protocol):
    """Ids [n_tokens] of one text after the other, lengths [n_texts], and word starts bool [n_tokens] or None."""

    name: str

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...


class HuggingFaceEncoder:
    """Encodes with the tokenizers library; `with_word_starts` also reports the first token of each pre-token."""

    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer, with_word_starts: bool) -> None:
        self._with_word_starts = with_word_starts
        # The fast variant leaves out the words.
        self._encode = tokenizer.encode_batch if with_word_starts else tokenizer.encode_batch_fast

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        pieces = [list(_pieces(text)) for text in texts]
        encodings = self._encode(list(itertools.chain(*pieces)), add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        firsts = np.cumsum([0] + [len(parts) for parts in pieces])
        ends = np.cumsum([0] + [len(part) for part in ids])
        starts = [_word_starts(encoding.word_ids) for encoding in encodings] if self._with_word_starts else None
        return _joined(ids, np.uint32), np.diff(ends[firsts]), _joined(starts, bool) if starts is not None else None


class NanotokenEncoder:
    """Encodes WordPiece with the `nanotoken` package, on the calling thread."""

    name = "nanotoken"

    def __init__(self, tokenizer: Tokenizer) -> None:
        from nanotoken import WordPieceTokenizer

        settings = json.loads(tokenizer.to_str())
        # Without its special tokens, it takes text that spells one for text.
        settings["added_tokens"] = [token for token in settings["added_tokens"] if not token["special"]]
        self._encode = WordPieceTokenizer.from_json(json.dumps(settings)).encode_batch

    def __call__(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        ids, offsets = self._encode(texts, add_special_tokens=False, parallel=False)
        return ids, np.diff(offsets), None


def choose_encoder(tokenizer: Tokenizer, info: TokenizerInfo, sample: Sequence[str]) -> tuple[Encoder, str]:
    """The fastest encoder that gives the tokenizers library's ids on `sample`, and why a faster one was left out."""
    reference = HuggingFaceEncoder(tokenizer, with_word_starts=info.continuation_prefix is None)
    if info.continuation_prefix is None:
        return reference, ""
    try:
        fast = NanotokenEncoder(tokenizer)
        probe = [*sample, " ".join(str(tokenizer.id_to_token(id)) for id in info.all_special_ids)]
        same = all(np.array_equal(a, b) for a, b in zip(reference(probe)[:2], fast(probe)[:2], strict=True))
    except ModuleNotFoundError:
        return reference, ""
    except Exception as error:  # a young package: whatever it raises, the ids can still be had
        return reference, f"nanotoken is not used: {error}"
    return (fast, "") if same else (reference, "nanotoken is not used: its ids differ from the tokenizers library's")


def _pieces(text: str) -> Iterator[str]:
    """The text cut before single spaces, where no pre-tokenizer in use joins what lies on both sides."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS and (cut := _CUT.search(text, start + PIECE_CHARACTERS)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _word_starts(word_ids: list[int | None]) -> np.ndarray:
    words = np.array([-1 if word is None else word for word in word_ids])
    return np.diff(words, prepend=-2) != 0


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
