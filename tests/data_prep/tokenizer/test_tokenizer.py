"""Tokenizers: reproducible training, loading in transformers, refusals, fetching, and special tokens in text."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, EsmTokenizer

from data_prep.common.errors import UserError
from data_prep.sources import Options, find_inputs
from data_prep.storage import Cache
from data_prep.tokenizer import CorpusSample, Encoders, copy_files, describe_tokenizer, fetch, load, train_tokenizer
from tests.support.hostile_json import DIGITS, NESTED
from tests.support.hub_server import Repository, Store, connect, serving_hub
from tests.support.prep import tree
from tests.support.runs import environment

TEXTS = [
    "The curved blades, by Carolyn Wells. ",
    "It's unbelievable — naïve 東京!",
    "never mind the others\n\n  end",
] * 20
SIZES = {"wordpiece": 200, "bpe": 300, "characters": 100}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    for kind, size in SIZES.items():
        assert train_tokenizer(TEXTS, kind, size, folder / kind) <= size
    return {kind: folder / kind for kind in SIZES}


def test_training_in_another_process_gives_the_same_bytes(folders, tmp_path):
    code = f"""if True:
        from pathlib import Path
        from data_prep.tokenizer import train_tokenizer
        for kind, size in {SIZES}.items():
            train_tokenizer({TEXTS}, kind, size, Path({str(tmp_path)!r}, kind))
    """
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
    assert tree(tmp_path) == tree(folders["bpe"].parent)


def test_no_file_behind_a_link_is_copied(folders, tmp_path):
    (tmp_path / "private.json").write_text('{"password": 1}')
    source = shutil.copytree(folders["bpe"], tmp_path / "source")
    (source / "special_tokens_map.json").unlink(missing_ok=True)
    (source / "special_tokens_map.json").symlink_to(tmp_path / "private.json")
    with pytest.raises(UserError, match="is a symbolic link"):
        copy_files(source, tmp_path / "copy")


@pytest.mark.parametrize("kind", SIZES)
def test_transformers_loads_it(folders, kind):
    info = describe_tokenizer(folders[kind])
    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    assert info.special_ids == {n: getattr(tokenizer, f"{n}_token_id") for n in ("pad", "unk", "cls", "sep", "mask")}
    assert len(tokenizer) == info.vocab_size
    ids = tokenizer(f"never {tokenizer.mask_token} the others")["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert ids.count(tokenizer.mask_token_id) == 1
    assert tokenizer.decode(tokenizer("never mind")["input_ids"], skip_special_tokens=True) == "never mind"


def test_each_character_is_a_token_and_a_word(tmp_path):
    assert train_tokenizer(["MKTAYIAKQR", "mk!"], "characters", 1000, tmp_path / "a") == 5 + len(set("MKTAYIQRmk!"))
    tokenizer, info = load(tmp_path / "a"), describe_tokenizer(tmp_path / "a")
    ids, lengths, starts = Encoders(tokenizer, info).choose(["MKmB", "", "TA"])[0](["MKmB", "", "TA"])
    assert [tokenizer.id_to_token(id) for id in ids.tolist()] == ["M", "K", "m", "[UNK]", "T", "A"]
    assert lengths.tolist() == [4, 0, 2]
    assert starts.all()
    assert tokenizer.decode(tokenizer.encode("MKTAYI").ids) == "MKTAYI"
    assert train_tokenizer(["AAB", "BAC"], "characters", 7, tmp_path / "b") == 7, "the most frequent ones"
    assert set(load(tmp_path / "b").get_vocab()) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "B"}


def test_describe(folders):
    wordpiece, bpe = describe_tokenizer(folders["wordpiece"]), describe_tokenizer(folders["bpe"])
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
        describe_tokenizer(tmp_path)


def test_special_tokens_are_known_by_their_usual_names(folders, tmp_path):
    copy_files(folders["bpe"], tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert describe_tokenizer(tmp_path).special_ids == describe_tokenizer(folders["bpe"]).special_ids
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "</s>"}}))
    assert describe_tokenizer(tmp_path).special_ids["pad"] == describe_tokenizer(folders["bpe"]).special_ids["sep"]


def test_one_token_for_two_roles_is_refused(folders, tmp_path):
    copy_files(folders["bpe"], tmp_path)
    (tmp_path / "special_tokens_map.json").write_text("{}")
    for role, token, other in (("mask", "<pad>", "pad"), ("pad", "<s>", "cls"), ("mask", "<unk>", "unk")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({f"{role}_token": token}))
        with pytest.raises(UserError, match=rf"one token, id \d, as its {role} and its {other} token"):
            describe_tokenizer(tmp_path)


def test_unusable_folders_are_refused(folders, tmp_path):
    with pytest.raises(UserError, match="no tokenizer folder"):
        describe_tokenizer(tmp_path / "none")
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        describe_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not a valid tokenizer"):
        describe_tokenizer(tmp_path)
    shutil.copyfile(folders["bpe"] / "tokenizer.json", tmp_path / "tokenizer.json")
    for text in ("[", NESTED, DIGITS):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(UserError, match=r"tokenizer_config\.json cannot be used"):
            describe_tokenizer(tmp_path)


ESM = [*["<cls>", "<pad>", "<eos>", "<unk>"], *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]


@pytest.mark.parametrize("config", [None, {"tokenizer_class": "EsmTokenizer", "eos_token": "<eos>"}])
def test_the_vocabulary_of_esm_is_converted(tmp_path, config):
    given = tmp_path / "esm"
    given.mkdir()
    (given / "vocab.txt").write_text("".join(f"{token}\n" for token in ESM))
    if config:
        (given / "tokenizer_config.json").write_text(json.dumps(config))
    made = fetch(str(given), tmp_path / "made")
    slow, fast = EsmTokenizer(str(given / "vocab.txt")), AutoTokenizer.from_pretrained(made)
    draw = random.Random(1)
    letters = [*"LAGVSERTIDPKQNFYMHWCXBUZOJjm.- \n*1", "<null_1>", "<mask>", "  "]
    texts = ["".join(draw.choices(letters, k=draw.randint(0, 20))) for _ in range(300)]
    for text in texts:
        assert fast(text)["input_ids"] == slow(text)["input_ids"], text
    for folder in (given, made):
        assert describe_tokenizer(folder).special_ids == {"pad": 1, "unk": 3, "cls": 0, "sep": 2, "mask": 32}


def test_the_advice_for_a_slow_tokenizer_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nriver\n##s\n")
    (tmp_path / "slow/tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(UserError, match=r'AutoTokenizer.from_pretrained\("slow"\).save_pretrained\("NEW"\)'):
        describe_tokenizer(fetch("slow", tmp_path / "made"))
    AutoTokenizer.from_pretrained("slow").save_pretrained("NEW")
    assert describe_tokenizer(tmp_path / "NEW").vocab_size == 8


@pytest.mark.parametrize("model", [models.WordLevel, models.WordPiece])
def test_text_that_a_tokenizer_without_unknown_token_cannot_encode(tmp_path, model):
    specials = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(model({word: id for id, word in enumerate([*specials, "the", "river"])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoders = Encoders(load(tmp_path), describe_tokenizer(tmp_path))
    assert encoders.choose(["the river"])[0](["the river"])[0].tolist() == [4, 5]
    with pytest.raises(UserError, match="no token for a part of the text, and no unknown token"):
        encoders.choose(["the river ran"])


def test_training_refuses_what_cannot_be(tmp_path):
    with pytest.raises(UserError, match="no text"):
        train_tokenizer(["", " \n"], "wordpiece", 100, tmp_path / "a")
    with pytest.raises(UserError, match="use 261 or more"):
        train_tokenizer(TEXTS, "bpe", 260, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_stored_truncation_padding_and_dropout_are_ignored(folders, tmp_path):
    for kind in ("wordpiece", "bpe"):
        copy_files(folders[kind], tmp_path / kind)
        tokenizer = load(tmp_path / kind)
        tokenizer.enable_truncation(8)
        tokenizer.enable_padding(length=8)
        state = json.loads(tokenizer.to_str())
        state["model"] |= {"dropout": 0.9} if kind == "bpe" else {}
        (tmp_path / kind / "tokenizer.json").write_text(json.dumps(state))
        for text in ("never mind the others " * 20, "a"):
            assert load(tmp_path / kind).encode(text).ids == load(folders[kind]).encode(text).ids


def test_a_local_tokenizer_is_found(folders, tmp_path):
    assert fetch(str(folders["bpe"]), tmp_path / "unused") == folders["bpe"]
    assert not (tmp_path / "unused").exists()
    into = tmp_path / "into"
    copy_files(folders["wordpiece"], into)
    (into / "vocab.txt").write_text("of another tokenizer")
    assert fetch(str(folders["bpe"] / "tokenizer.json"), into) == into
    assert [path.name for path in into.iterdir()] == ["tokenizer.json"]
    assert describe_tokenizer(into).special_ids == describe_tokenizer(folders["bpe"]).special_ids
    for value in ("./none", "a/b/c", "none.json", "../none", "-x"):
        with pytest.raises(UserError, match="No tokenizer at"):
            fetch(value, tmp_path / "none")


def test_a_tokenizer_of_the_hub_is_downloaded_without_code_and_keeps_its_commit(folders, tmp_path, monkeypatch):
    files = {path.name: path.read_bytes() for path in folders["bpe"].iterdir()}
    slow = {"vocab.txt": b"[PAD]\nthe\n"}
    repositories = {"owner/name-1.0": Repository(False), "owner/slow": Repository(False)}
    for repository, content in zip(repositories.values(), (files, slow), strict=True):
        repository.commit("main", content | {"modeling.py": b"raise SystemExit"})
    with serving_hub(Store({}, repositories)) as hub:
        connect(monkeypatch, hub, tmp_path / "hf")
        value, into = "hub:owner/name-1.0", tmp_path / "into"
        assert describe_tokenizer(fetch(value, into)) == describe_tokenizer(folders["bpe"])
        assert {path.name for path in into.iterdir()} == files.keys() | {"hub.json"}
        repositories["owner/name-1.0"].commit("main", slow)
        assert describe_tokenizer(fetch(value, into)) == describe_tokenizer(folders["bpe"])
        fetch(str(folders["wordpiece"] / "tokenizer.json"), into)
        with pytest.raises(UserError, match="has no fast tokenizer"):  # not kept, as into got another tokenizer
            fetch(value, into)
        with pytest.raises(UserError, match=r"owner/slow has no fast tokenizer .*from_pretrained\(.owner/slow"):
            fetch("hub:owner/slow", tmp_path / "slow")
        with pytest.raises(UserError, match=r"No tokenizer at a/typo \(working directory.* write hub:a/typo"):
            fetch("a/typo", tmp_path / "slow")
    assert not (tmp_path / "slow").exists()


def sample_of(paths: list[Path], sample_bytes: int, **limits: int) -> CorpusSample:
    inputs = find_inputs(list(map(str, paths)))
    return CorpusSample(inputs, Options(), sample_bytes, Cache(paths[0].parent / "cache", 1000), **limits)


def test_the_training_sample_is_spread_bounded_and_repeatable(tmp_path):
    paths = []
    for number, count in enumerate((400, 100, 1, 100)):
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_text("".join(json.dumps({"text": f"{number} é {row:06}"}) + "\n" for row in range(count)))
    size = len("0 é 000000".encode())
    whole = sample_of(paths, 10**6)
    assert (len(list(whole)), whole.text_bytes, whole.cut) == (601, 601 * size, False)
    exact = sample_of(paths, 601 * size, min_share=size)
    assert (len(list(exact)), exact.cut) == (601, False)
    sample = sample_of(paths, 60 * size, min_share=size)
    texts = list(sample)
    assert list(sample) == texts
    assert sample.cut
    assert 59 * size <= sample.text_bytes <= 60 * size
    counts = Counter(text[:1] for text in texts)
    assert 38 <= counts["0"] <= 41
    assert min(counts["1"], counts["3"]) >= 9
    few = sample_of(paths, 2 * size, min_share=size)
    assert [text[:1] for text in few] == ["0", "0", "2"]
    assert few.cut
