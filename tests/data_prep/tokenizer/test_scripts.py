"""Ten scripts, DNA and proteins: from `maskwright init` to tokens, back to text, words, and a filled mask."""

import json
import random
import shlex
import unicodedata

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from data_prep.common.errors import UserError
from data_prep.tokenizer import Encoders, Spelling, describe_tokenizer, load, measure_unknown, train_tokenizer
from data_prep.tokenizer.encoders import is_settled
from data_prep.tokenizer.long_words import RUN_CHARACTERS, WORD_CHARACTERS
from evaluation.generation import Writer
from tests.support.in_process import command

SPACED = {
    "vietnamese": "má mà mả mã mạ ma nhà sông cây và tôi bạn về nước trời Đường",
    "french": "pêche mûr forêt où naïf garçon élève Noël cœur être",
    "russian": "Дом река ёлка йод маленький старый сад и в на",
    "greek": "σπίτι Ποτάμι μικρό παλιό κήπος και στο νερό ήλιος",
    "arabic": "بَيْت نهر صغير قديم حديقة في على ماء شمس مُدَرِّس",
    "hebrew": "בַּיִת נָהָר קָטָן יָשָׁן גַּן עַל מַיִם שֶׁמֶשׁ",
    "hindi": "में मैं कुल कल कूल पानी घर नदी पेड़ बच्चे हूँ",
    "korean": "집 강 작은 오래된 정원 그리고 물 해 나무가 학교에",
}
WHOLE = {
    "thai": "ฉัน เธอ เรา ไป มา บ้าน แม่น้ำ ต้นไม้ เด็ก โรงเรียน น้ำ ฝน",
    "chinese": "房子 河流 小 旧 花园 和 水 太阳 学校 ，",
    "japanese": "いえ かわ ちいさい がっこう ガラス 花 水 です 。",
    "dna": "A C G T",
    "protein": "A C D E F G H I K L M N P Q R S T V W Y",
}


@pytest.mark.parametrize("name", [*SPACED, *WHOLE])
def test_a_first_model_of_a_script(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw, words = random.Random(3), (SPACED | WHOLE)[name].split()
    texts = [("" if name in WHOLE else " ").join(draw.choices(words, k=60)) for _ in range(30)]
    if name == "protein":
        (tmp_path / "a.fasta").write_text("".join(f">{n}\n{text}\n" for n, text in enumerate(texts)))
    else:
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    file = "a.fasta" if name == "protein" else "a.jsonl"
    made = command("init", file, "--yes", "--no-prep", "--minutes", "0.1")
    assert made.code == 0, made.err
    assert yaml.safe_load((tmp_path / "my-model.yaml").read_text())["model"]["arch"] == "modernbert"
    (line,) = [line for line in made.out.splitlines() if "maskwright tokenizer train" in line]
    is_cased = name in ("vietnamese", "french", "russian", "greek")
    assert ("--kind bpe" in line, "--no-lowercase" in line) == (name in WHOLE, name in SPACED and not is_cased)
    trained = command(*shlex.split(line)[1:])
    assert (trained.code, trained.err) == (0, "")

    folder = tmp_path / "data/my-model-tokenizer"
    tokenizer, info = load(folder), describe_tokenizer(folder)
    assert measure_unknown(tokenizer, texts, info.special_ids["unk"]).share == 0
    decomposed = [unicodedata.normalize("NFD", text) for text in texts]
    assert [tokenizer.encode(text).ids for text in decomposed] == [tokenizer.encode(text).ids for text in texts]
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    if is_cased:
        composed = [text.lower() for text in composed]
    for loaded in (tokenizer.decode, AutoTokenizer.from_pretrained(folder).decode):
        assert [loaded(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts] == composed
    encoder, note = Encoders(tokenizer, info).choose(texts)
    ids, _, starts = encoder(texts)
    assert note == ""
    assert ids.tolist() == [id for text in texts for id in tokenizer.encode(text, add_special_tokens=False).ids]
    if starts is None:
        starts = info.begins_word((folder / "tokenizer.json").read_bytes())[ids]
    if name in SPACED:
        spelling, words = Spelling.open(folder), np.split(ids, np.flatnonzero(starts)[1:])
        assert [spelling.text(word.tolist()).strip() for word in words] == " ".join(composed).split()

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=info.vocab_size, **sizes)).save_pretrained(folder)
    mask = "[MASK]" if name in SPACED else "<mask>"
    filled = Writer(folder).fill(f"{texts[0][:20]}{mask}{texts[1][:20]}", 3)
    assert [len(one) for one in filled] == [3]


MARKS = ["\u0628\u0653\u08d3\u0631", "cafe\u0301", "\u05d1\u05bc\u05b7", "e\u0f71\u0f72\u0f74", "q\u0898\u0323\u0307"]
LONG = ["ACGT" * 700 + " more", "x" * RUN_CHARACTERS + "'s y", " " * 2500 + "z", "ก" * (2 * WORD_CHARACTERS + 1)]


@pytest.mark.parametrize("kind, size", [("wordpiece", 400), ("bpe", 300)])
def test_encoders_agree_on_marks_and_long_words(kind, size, tmp_path):
    texts = [*MARKS, *LONG, " ".join(MARKS), "🦀" * 1200, "It's \u0130 o\u0323\u0302. " * 90]
    train_tokenizer(texts, kind, size, tmp_path / "tokenizer")
    encoders = Encoders(load(tmp_path / "tokenizer"), describe_tokenizer(tmp_path / "tokenizer"))
    encoder, note = encoders.choose(["plain words"])
    assert note == ""
    for batch in (texts, *([text] for text in texts)):
        for made in (encoder, encoders.library):
            for ours, theirs in zip(made(batch), encoders.reference(batch), strict=True):
                assert (ours is None and theirs is None) or np.array_equal(ours, theirs)


@pytest.mark.parametrize("forms", [["NFC"], ["NFC", "NFC"], ["NFKC"], ["NFC", "NFD"]], ids="-".join)
def test_every_mark_gives_the_ids_of_the_library(forms, tmp_path):
    """Each mark between two others, as typed in a wrong order: packages know different versions of Unicode."""
    train_tokenizer(["plain text " * 20], "bpe", 300, tmp_path / "bpe")
    file = tmp_path / "bpe/tokenizer.json"
    normalizer = {"type": "Sequence", "normalizers": [{"type": form} for form in forms]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": normalizer}))
    marks = [chr(n) for n in range(0x300, 0x1F000) if unicodedata.category(chr(n))[0] == "M"]
    texts = [f"a{one}{mark}{other}" for mark in marks for one, other in ("\u0301\u0323", "\u0323\u0301")]
    encoders = Encoders(load(tmp_path / "bpe"), describe_tokenizer(tmp_path / "bpe"))
    encoder, note = encoders.choose(["plain text"])
    texts = list(filter(is_settled, texts))
    assert len(texts) > 1.8 * len(marks)
    assert np.array_equal(encoder(texts)[0], encoders.reference(texts)[0])
    assert ("another version of Unicode" in note) == (len(forms) > 1 or forms == ["NFKC"])


def test_wordpiece_knows_all_frequent_characters_of_a_large_script(tmp_path):
    draw = random.Random(1)
    characters = [chr(0x4E00 + n) for n in range(3000)]
    texts = ["".join(draw.choices(characters, k=200)) for _ in range(200)]
    assert train_tokenizer(texts, "wordpiece", 5000, tmp_path / "large") == 5 + len({*"".join(texts)})
    assert measure_unknown(load(tmp_path / "large"), texts, 1).share == 0
    with pytest.raises(UserError, match=r"cannot hold the text's \d+ characters .* or --kind bpe"):
        train_tokenizer(texts, "wordpiece", 2000, tmp_path / "small")


def test_long_sequences_train_in_time(tmp_path):
    """Half a million letters in two sequences: without a cut, this does not end in minutes."""
    draw = random.Random(5)
    sequences = ["".join(draw.choices("ACGT", k=250_000)) for _ in range(2)]
    assert train_tokenizer(sequences, "bpe", 1024, tmp_path / "bpe") == 1024
    assert train_tokenizer(sequences, "wordpiece", 1024, tmp_path / "wordpiece") == 1024


def test_characters_that_a_tokenizer_drops_are_lost():
    """BPE without unknown token and bytes: offsets after a dropped character are wrong."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["[PAD]"], show_progress=False)
    tokenizer.train_from_iterator(["the cheap harbour of the small house"] * 9, trainer)
    measured = measure_unknown(tokenizer, ["pêche mûr à la forêt"], None)
    assert (measured.lost, measured.characters, measured.examples) == (4, 16, ["ê", "û", "à"])
    with pytest.raises(UserError, match=r"as 'ê', 'û', 'à': 0.0% of the tokens .* 25.0% of the characters are lost"):
        measured.check(allow=False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    assert measure_unknown(tokenizer, ["pêche mûr à la forêt\u0301"], None).lost == 0, "removed on purpose"
