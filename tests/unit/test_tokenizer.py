"""Tokenizers: training twice alike, loading in transformers, refusals, and encoding text as text."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep import encode
from data_prep.encode import HuggingFaceEncoder, choose_encoder
from data_prep.errors import UserError
from data_prep.tokenizer import copy_files, describe, load, train

TEXTS = [
    "The curved blades, by Carolyn Wells. ",
    "It's unbelievable — naïve 東京!",
    "never mind the others\n\n  end",
] * 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    for kind, size in (("wordpiece", 200), ("bpe", 300)):
        assert train(TEXTS, kind, size, folder / kind) <= size
    return {kind: folder / kind for kind in ("wordpiece", "bpe")}


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_in_another_process_gives_the_same_bytes(folders, tmp_path, kind):
    size = {"wordpiece": 200, "bpe": 300}[kind]
    code = (
        "import sys; from pathlib import Path; from data_prep.tokenizer import train; "
        "from tests.unit.test_tokenizer import TEXTS; train(TEXTS, sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))"
    )
    for attempt in ("a", "b"):
        subprocess.run([sys.executable, "-c", code, kind, str(size), str(tmp_path / attempt)], check=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / attempt / name).read_bytes() == (folders[kind] / name).read_bytes()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_transformers_loads_it(folders, kind):
    from transformers import AutoTokenizer

    info = describe(folders[kind])
    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    assert info.special_ids == {n: getattr(tokenizer, f"{n}_token_id") for n in ("pad", "unk", "cls", "sep", "mask")}
    assert len(tokenizer) == info.vocab_size
    ids = tokenizer(f"never {tokenizer.mask_token} the others")["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert ids.count(tokenizer.mask_token_id) == 1
    assert tokenizer.decode(tokenizer("never mind")["input_ids"], skip_special_tokens=True) == "never mind"


def test_describe(folders):
    wordpiece, bpe = describe(folders["wordpiece"]), describe(folders["bpe"])
    assert (wordpiece.continuation_prefix, bpe.continuation_prefix) == ("##", None)
    assert wordpiece.all_special_ids == bpe.all_special_ids == [0, 1, 2, 3, 4]
    digest = subprocess.run("sha256sum * | sha256sum", shell=True, cwd=folders["bpe"], capture_output=True, check=True)  # noqa: S602
    assert bpe.sha256 == digest.stdout.split()[0].decode()


@pytest.mark.parametrize("role, token", [("mask", "[MASK]"), ("cls", "[CLS]"), ("sep", "[SEP]"), ("pad", "[PAD]")])
def test_a_tokenizer_without_a_needed_token_is_refused(folders, tmp_path, role, token):
    copy_files(folders["wordpiece"], tmp_path)
    settings_ = json.loads((tmp_path / "tokenizer.json").read_text())
    settings_["added_tokens"] = [added for added in settings_["added_tokens"] if added["content"] != token]
    settings_["model"]["vocab"]["renamed"] = settings_["model"]["vocab"].pop(token)
    settings_["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings_))
    with pytest.raises(UserError, match=f"has no {role} token"):
        describe(tmp_path)


def test_special_tokens_are_known_by_their_usual_names(folders, tmp_path):
    copy_files(folders["bpe"], tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert describe(tmp_path).special_ids == describe(folders["bpe"]).special_ids
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "<pad>"}}))
    assert describe(tmp_path).special_ids["mask"] == describe(folders["bpe"]).special_ids["pad"]


def test_unusable_folders_are_refused(folders, tmp_path):
    with pytest.raises(UserError, match="no tokenizer folder"):
        describe(tmp_path / "none")
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        describe(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not a valid tokenizer"):
        describe(tmp_path)
    shutil.copyfile(folders["bpe"] / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is not"):
        describe(tmp_path)


def test_training_refuses_what_cannot_be(tmp_path):
    with pytest.raises(UserError, match="no text"):
        train(["", " \n"], "wordpiece", 100, tmp_path / "a")
    with pytest.raises(UserError, match="cannot hold"):
        train(TEXTS, "wordpiece", 20, tmp_path / "a")
    with pytest.raises(UserError, match="use 261 or more"):
        train(TEXTS, "bpe", 260, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_text_that_spells_a_special_token_stays_text(folders, kind):
    info, tokenizer = describe(folders[kind]), load(folders[kind])
    text = "a [MASK] b <mask> [CLS]</s> [SEP] [PAD] <pad> <s>"
    encoder, _ = choose_encoder(tokenizer, info, [text])
    ids, lengths, _ = encoder([text])
    assert lengths.tolist() == [len(ids)]
    forbidden = [id for name, id in info.special_ids.items() if name != "unk"]
    assert not np.isin(ids, forbidden).any()


def test_stored_truncation_and_padding_are_ignored(folders, tmp_path):
    copy_files(folders["wordpiece"], tmp_path)
    tokenizer = load(tmp_path)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    _, lengths, _ = HuggingFaceEncoder(load(tmp_path), False)(["never mind " * 50, "a"])
    assert lengths.tolist() == [100, 1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab é\n\t.,'東  "), max_size=80), max_size=4))
def test_pieces_do_not_change_the_encoding(folders, texts):
    for kind in ("wordpiece", "bpe"):
        encoder = HuggingFaceEncoder(load(folders[kind]), with_word_starts=kind == "bpe")
        whole = encoder(texts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encode, "PIECE_CHARACTERS", 3)
            pieces = encoder(texts)
        for a, b in zip(whole, pieces, strict=True):
            np.testing.assert_array_equal(a, b)


def test_word_starts_of_bpe(folders):
    tokenizer = load(folders["bpe"])
    ids, _, starts = HuggingFaceEncoder(tokenizer, with_word_starts=True)(["never mind, it's", "others"])
    words: list[str] = []
    for id, start in zip(ids, starts, strict=True):
        words += [""] * int(start)
        words[-1] += tokenizer.id_to_token(int(id))
    assert words == ["never", "Ġmind", ",", "Ġit", "'s", "others"]


def test_nanotoken_is_used_only_with_equal_ids(folders, monkeypatch):
    nanotoken = pytest.importorskip("nanotoken")
    info, tokenizer = describe(folders["wordpiece"]), load(folders["wordpiece"])
    encoder, note = choose_encoder(tokenizer, info, TEXTS)
    assert (encoder.name, note) == ("nanotoken", "")
    for ours, theirs in zip(encoder(TEXTS)[:2], HuggingFaceEncoder(tokenizer, False)(TEXTS)[:2], strict=True):
        np.testing.assert_array_equal(ours, theirs)

    real = nanotoken.WordPieceTokenizer

    class Wrong:
        @staticmethod
        def from_json(text):
            return Wrong(real.from_json(text))

        def __init__(self, right):
            self.right = right

        def encode_batch(self, texts, **options):
            return self.right.encode_batch([text + "x" for text in texts], **options)

    class Failing:
        @staticmethod
        def from_json(text):
            raise ValueError("not for me")

    for fake, reason in ((Wrong, "ids differ"), (Failing, "not for me")):
        monkeypatch.setattr("nanotoken.WordPieceTokenizer", fake)
        encoder, note = choose_encoder(tokenizer, info, TEXTS)
        assert encoder.name == "tokenizers"
        assert reason in note
    monkeypatch.setitem(sys.modules, "nanotoken", None)
    assert choose_encoder(tokenizer, info, TEXTS)[1] == ""
