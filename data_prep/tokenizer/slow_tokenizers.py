"""Tokenizers without a tokenizer.json: convert ESM-2's, and advise on others."""

import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from data_prep.common.reading import read_json, read_text

ESM = {"cls": "<cls>", "pad": "<pad>", "sep": "<eos>", "unk": "<unk>", "mask": "<mask>"}


def esm_tokenizer(folder: Path) -> Tokenizer | None:
    """ESM-2's tokenizer from its vocab.txt, with the ids of transformers' EsmTokenizer; None for another tokenizer."""
    config: dict[str, Any] = {}
    if (folder / "tokenizer_config.json").is_file():
        config = read_json(folder / "tokenizer_config.json", dict[str, Any])
    if not (folder / "vocab.txt").is_file() or config.get("tokenizer_class") not in (None, "EsmTokenizer"):
        return None
    tokens = [line.strip() for line in read_text(folder / "vocab.txt").splitlines()]
    if not {*ESM.values()} <= {*tokens}:
        return None
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=ESM["unk"]))
    longest_first = sorted(filter(None, {*tokens} - {*ESM.values()}), key=lambda token: (-len(token), token))
    each = pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), each])
    tokenizer.decoder = decoders.Fuse()
    ends = [(ESM[role], vocabulary[ESM[role]]) for role in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>", pair="<cls> $A <eos> $B <eos>", special_tokens=ends
    )
    tokenizer.add_special_tokens(list(ESM.values()))
    return tokenizer


def esm_config() -> dict[str, str]:
    """The tokenizer_config.json of a converted ESM-2 tokenizer."""
    names = {f"{role}_token": token for role, token in ESM.items()}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ESM["sep"], **names}


def advice(value: str) -> str:
    """What to do about the tokenizer `value`, which has no tokenizer.json."""
    return (
        f'convert it with transformers: AutoTokenizer.from_pretrained("{value}").save_pretrained("NEW"), and name NEW. '
        "If NEW has no tokenizer.json either, train one with `maskwright tokenizer train`"
    )
