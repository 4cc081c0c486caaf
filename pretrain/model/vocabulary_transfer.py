"""First embeddings of another vocabulary: fast vocabulary transfer (Gee et al., "Fast vocabulary transfer for language
model compression", EMNLP 2022).

A new token starts as the mean of the embeddings of the pieces that the model's own tokenizer makes of its text. FOCUS
(Dobler and de Melo, 2023) and WECHSEL (Minixhofer et al., 2022) need other embeddings too, trained on text.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from data_prep.tokenizer import Spelling, describe_tokenizer, load
from pretrain.model.families import VOCABULARY, Weights
from pretrain.model.model_description import EncoderShape

PieceLists = list[list[int]]
"""For each new id, the old ids whose mean it starts with; none for the mean of all embeddings."""

_LETTER = "q"  # a letter that no mark is ever composed with


def token_pieces(old: Path, new: Path) -> PieceLists:
    """The pieces of each token of a new tokenizer, by the tokenizer in the folder `old`.

    - A special token has the special token of the same role, or else of the same name.
    - A token that both tokenizers have is its own piece: the same bytes, at the start of a word or inside one.
    - Other text is cut as within a text: after a letter, or after a space if the token begins a word.

    Raises UserError if a folder has no tokenizer, or one without a role that masked language models need.
    """
    before, after = describe_tokenizer(old), describe_tokenizer(new)
    spelled, wanted = Spelling.open(old), Spelling.open(new)
    by_text = {text: id for id, text in sorted(spelled.pieces.items()) if id not in before.all_special_ids}
    by_name = {spelled.names[id]: id for id in before.all_special_ids}
    by_role = {id: before.special_ids[role] for role, id in after.special_ids.items() if role in before.special_ids}
    cut, begins = _cutter(load(old)), _word_start(load(new))

    def pieces(id: int) -> list[int]:
        if id in after.all_special_ids:
            same = by_role.get(id, by_name.get(wanted.names[id]))
            return [] if same is None else [same]
        text = begins(wanted.pieces.get(id, b""))
        if text in by_text:
            return [by_text[text]]
        try:
            return cut(text.decode())
        except UnicodeDecodeError:  # a part of a character
            return [by_text[byte] for byte in (bytes([byte]) for byte in text) if byte in by_text]

    return [pieces(id) for id in range(after.vocab_size)]


def transferred(state: Weights, pieces: PieceLists, old: EncoderShape, new: EncoderShape) -> Weights:
    """A native state with the vocabulary of the shape `new`. Padding rows are zeros."""

    def means(table: Tensor) -> Tensor:
        rows = table[: old.vocab_size]
        mean = rows.mean(0)
        weights = table.new_zeros(new.padded_vocab_size, *table.shape[1:])
        weights[: len(pieces)] = torch.stack([rows[ids].mean(0) if ids else mean for ids in pieces])
        return weights

    weights = state | {name: means(state[name]) for name in VOCABULARY if name in state}
    if old.first_position != new.first_position:  # RoBERTa's table begins after the id of the padding token
        used = state["position_embedding"][old.first_position :]
        weights["position_embedding"] = torch.cat([used.new_zeros(new.first_position, old.hidden), used])
    return weights


def _cutter(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """A function that gives the ids of a text that follows a letter. A space in front begins a word."""
    inside = _inside_words(tokenizer)

    def cut(text: str) -> list[int]:
        first, *words = _split(tokenizer, _LETTER + text)
        parts = [(inside, first.partition(_LETTER)[2]), *((tokenizer.model, word) for word in words)]
        return [token.id for model, part in parts if part for token in model.tokenize(part)]

    return cut


def _split(tokenizer: Tokenizer, text: str) -> list[str]:
    """The parts that the tokenizer splits a text into before its model sees it."""
    if tokenizer.normalizer:
        text = tokenizer.normalizer.normalize_str(text)
    return [part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if tokenizer.pre_tokenizer else [text]


def _inside_words(tokenizer: Tokenizer) -> models.Model:
    """The model for text inside a word. WordPiece has other pieces there: those with ## in front."""
    settings = json.loads(tokenizer.to_str())["model"]
    prefix = settings.get("continuing_subword_prefix")
    if settings["type"] != "WordPiece" or not prefix:
        return tokenizer.model
    unknown = settings["unk_token"]
    inner = {token: id for token, id in settings["vocab"].items() if token.startswith(prefix)}
    vocab = {unknown: settings["vocab"][unknown]} | inner | {token[len(prefix) :]: id for token, id in inner.items()}
    return models.WordPiece(vocab, unk_token=unknown, continuing_subword_prefix=prefix)


def _word_start(tokenizer: Tokenizer) -> Callable[[bytes], bytes]:
    """A function that takes the space from WordPiece's tokens of punctuation: they begin words without one, too."""
    if not isinstance(tokenizer.model, models.WordPiece):
        return lambda text: text

    def begins(text: bytes) -> bytes:
        bare = text.strip()
        return bare if _split(tokenizer, _LETTER + bare.decode())[0] == _LETTER else text

    return begins
