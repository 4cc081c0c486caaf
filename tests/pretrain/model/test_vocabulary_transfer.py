"""Embeddings of another vocabulary: pieces by hand for tokenizers of every kind, special tokens by role, and means."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pretrain.model import EncoderShape
from pretrain.model.vocabulary_transfer import token_pieces, transferred
from tests.support.small_tokenizers import SPECIALS, loaded


def saved(folder: Path, model, pre_tokenizer, normalizer=None) -> Path:
    """The folder of a tokenizer with the special tokens of SPECIALS."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(SPECIALS)
    folder.mkdir()
    loaded(json.loads(tokenizer.to_str()), folder)
    return folder


def numbered(tokens: list[str]) -> dict[str, int]:
    return {token: id for id, token in enumerate(tokens)}


def wordpiece(folder: Path, *tokens: str) -> Path:
    """As BERT's, without uppercase letters."""
    model = models.WordPiece(numbered([*SPECIALS, *tokens]), unk_token="<unk>")
    return saved(folder, model, pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())


def byte_level(folder: Path, *merges: str, prefix: bool = False) -> Path:
    """As RoBERTa's: all bytes, and merges written as "Ġu n"."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = numbered([*SPECIALS, *alphabet, *("".join(pair) for pair in pairs)])
    return saved(folder, models.BPE(vocab, pairs), pre_tokenizers.ByteLevel(add_prefix_space=prefix))


def unigram(folder: Path, **scores: float) -> Path:
    """As XLM-RoBERTa's. `_` stands for the mark."""
    pieces = [(token, 0.0) for token in SPECIALS] + [(token.replace("_", "▁"), s) for token, s in scores.items()]
    return saved(folder, models.Unigram(pieces, unk_id=SPECIALS.index("<unk>")), pre_tokenizers.Metaspace())


def marked(folder: Path, *tokens: str) -> Path:
    """As Llama 2's: the normalizer writes the marks, and nothing splits words."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model = models.BPE(numbered([*SPECIALS, *tokens]), [], unk_token="<unk>")
    return saved(folder, model, None, normalizer)


def names(folder: Path) -> dict[int, str]:
    vocab = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return {id: token for token, id in vocab.items()}


MERGES = ("u n", "Ġ un", "h a", "ha p", "hap p", "Ġ happ")
OLD = {
    "wordpiece": lambda folder: wordpiece(folder, "un", "##happ", "##y", "happ", "##un", ",", "the"),
    "byte-level": lambda folder: byte_level(folder, *MERGES),
    "byte-level with a space in front": lambda folder: byte_level(folder, *MERGES, prefix=True),
    "unigram": lambda folder: unigram(
        folder, _un=-1, un=-2, happ=-1, y=-1, _happ=-1, unhapp=-99, **{",": -1, "_": -9}
    ),  # texts never have the token "unhapp", as its parts score higher
    "marks of the normalizer": lambda folder: marked(folder, "▁", "u", "n", "h", "a", "p", "y", ","),
}
NEW = {
    "wordpiece": lambda folder: wordpiece(folder, "unhappy", "##unhappy", "un", ",", "##y", "The"),
    "byte-level": lambda folder: byte_level(
        folder, "u n", "Ġ un", "h a", "ha p", "hap p", "happ y", "un happy", "Ġ unhappy", "æ ±"
    ),
    "unigram": lambda folder: unigram(folder, _unhappy=-1, unhappy=-1, _un=-1, **{"_un_happ": -1, ",": -1}),
}
SPELLED = ["h", "a", "p", "p"]
WANTED = [
    # the tokenizer of the model, that of the data, and pieces by token
    ("wordpiece", "wordpiece", {"unhappy": ["un", "##happ", "##y"], "##unhappy": ["##un", "##happ", "##y"]}),
    ("wordpiece", "wordpiece", {"un": ["un"], ",": [","], "##y": ["##y"], "The": ["the"]}),
    ("wordpiece", "byte-level", {"Ġunhappy": ["un", "##happ", "##y"], "unhappy": ["##un", "##happ", "##y"]}),
    ("wordpiece", "byte-level", {"Ġun": ["un"], ",": [","], "z": ["<unk>"], "Ġ": [], "æ±": [], "æ": []}),
    ("wordpiece", "unigram", {"▁un▁happ": ["un", "happ"], "unhappy": ["##un", "##happ", "##y"], ",": [","]}),
    ("byte-level", "wordpiece", {"unhappy": ["Ġun", "happ", "y"], "##unhappy": ["un", "happ", "y"], ",": [","]}),
    ("byte-level", "byte-level", {"Ġunhappy": ["Ġun", "happ", "y"], "æ±": ["æ", "±"], "Ġ": ["Ġ"]}),
    ("byte-level with a space in front", "wordpiece", {"unhappy": ["Ġun", "happ", "y"], "##y": ["y"], ",": [","]}),
    ("byte-level with a space in front", "unigram", {"unhappy": ["un", "happ", "y"], "▁un▁happ": ["Ġun", "Ġhapp"]}),
    ("unigram", "wordpiece", {"unhappy": ["▁un", "happ", "y"], "##unhappy": ["un", "happ", "y"], ",": [","]}),
    ("unigram", "byte-level", {"Ġunhappy": ["▁un", "happ", "y"], "Ġ": ["▁"], "un": ["un"]}),
    ("marks of the normalizer", "wordpiece", {"un": ["▁", "u", "n"], "##y": ["y"], ",": [","]}),
    ("marks of the normalizer", "unigram", {"▁un▁happ": ["▁", "u", "n", "▁", *SPELLED]}),
]


@pytest.mark.parametrize(("old", "new", "wanted"), WANTED)
def test_the_pieces_of_tokens_by_hand(tmp_path, old, new, wanted):
    model, data = OLD[old](tmp_path / "old"), NEW[new](tmp_path / "new")
    of_model, of_data = names(model), names(data)
    found = {of_data[id]: [of_model[piece] for piece in ids] for id, ids in enumerate(token_pieces(model, data))}
    assert {token: found[token] for token in wanted} == wanted
    assert {token: found[token] for token in SPECIALS} == {token: [token] for token in SPECIALS}


@pytest.mark.parametrize("kind", OLD)
def test_the_tokens_of_the_same_tokenizer_are_copied(tmp_path, kind):
    folder = OLD[kind](tmp_path / "one")
    assert token_pieces(folder, folder) == [[id] for id in range(len(names(folder)))]


def test_special_tokens_go_to_those_of_the_same_role_or_else_name(tmp_path):
    old, new = wordpiece(tmp_path / "old", "[X]", "a"), wordpiece(tmp_path / "new", "[X]", "[Y]")
    roles = {"cls": "<pad>", "pad": "<s>", "sep": "</s>", "mask": "<mask>"}  # none has <unk>
    (new / "tokenizer_config.json").write_text(json.dumps({f"{role}_token": token for role, token in roles.items()}))
    for folder, others in ((old, ["[X]"]), (new, ["[X]", "[Y]"])):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens(others)
        tokenizer.save(str(folder / "tokenizer.json"))
    assert token_pieces(old, new) == [[1], [0], [2], [3], [4], [5], []]


OLD_SHAPE = EncoderShape(vocab_size=5, layers=1, hidden=2, heads=1, intermediate=4, max_positions=3, pad_id=0)
TABLE = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8], [9, 10]])


def test_embeddings_and_biases_are_means_of_their_pieces():
    state = {
        "word_embedding": torch.cat([TABLE, torch.full((59, 2), 100.0)]),  # padding that must not count
        "decoder_bias": torch.cat([TABLE[:, 0], torch.full((59,), 100.0)]),
        "head_dense.bias": torch.ones(2),
    }
    new = EncoderShape(**{**vars(OLD_SHAPE), "vocab_size": 70})
    found = transferred(state, [[3], [0, 1], [0, 1, 2, 3], []], OLD_SHAPE, new)
    assert found["word_embedding"].shape == (128, 2)
    assert found["word_embedding"][:4].tolist() == [[7, 8], [2, 3], [4, 5], [5, 6]]
    assert found["decoder_bias"][:4].tolist() == [7, 2, 4, 5]
    assert not found["word_embedding"][4:].any()
    assert found["head_dense.bias"] is state["head_dense.bias"]
