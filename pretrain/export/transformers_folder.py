"""Write a model and its tokenizer as a folder that transformers loads by name, in version 4.57 and in version 5."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.common.files import sha256_file, write_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_CAUSAL = "modernbert-decoder"
_MODERNBERT = ("modernbert", _CAUSAL)
_ESM_BASE = 10_000.0
_ONLY_IN_5 = ("backend", "is_local", "local_files_only")


def save_model(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Write config, safetensors weights and tokenizer into a folder, readable for whom the umask allows it.

    transformers 5 renamed some settings. The folder also has the names that version 4 reads, so that both versions
    compute the same.
    """
    _add_rotary_names(model.config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _rename_tokenizer_settings(folder / "tokenizer_config.json")
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)  # safetensors makes it readable for the owner alone


def model_digest(folder: Path) -> str:
    """The digest of a model's config, tokenizer and weights. Raises OSError."""
    files = [folder / "config.json", folder / "tokenizer.json", *sorted(folder.glob("*.safetensors"))]
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()


def needs_version_5(config: "PretrainedConfig") -> bool:
    """Whether version 4 cannot compute what this model computes.

    Its ModernBERTs see the whole text in every n-th layer, and its causal ones have one rotary base for all layers. It
    has no EuroBERT, and one rotary base for all ESMs.
    """
    if config.model_type == "eurobert" or (config.model_type == "esm" and config.rope_theta != _ESM_BASE):
        return True
    if config.model_type not in _MODERNBERT:
        return False
    every, kinds = _full_attention_every(config), config.layer_types
    periodic = all((kind == "full_attention") == (number % every == 0) for number, kind in enumerate(kinds))
    return not periodic or (config.model_type == _CAUSAL and len(set(_rotary_bases(config))) > 1)


def _add_rotary_names(config: "PretrainedConfig") -> None:
    """Add version 4's names of a ModernBERT's rotary bases and layers. Without them, version 4 takes its defaults."""
    if config.model_type not in _MODERNBERT:
        return
    full, sliding = _rotary_bases(config)
    every = _full_attention_every(config)
    config.update({"global_rope_theta": full, "local_rope_theta": sliding, "global_attn_every_n_layers": every})


def _rotary_bases(config: "PretrainedConfig") -> tuple[float, float]:
    """The rotary bases of layers that see the whole text, and of layers that see a window."""
    kinds = config.rope_parameters
    return kinds["full_attention"]["rope_theta"], kinds["sliding_attention"]["rope_theta"]


def _full_attention_every(config: "PretrainedConfig") -> int:
    kinds: list[str] = config.layer_types
    return next((n for n in range(1, len(kinds)) if kinds[n] == "full_attention"), len(kinds))


def _rename_tokenizer_settings(path: Path) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(settings.get("extra_special_tokens"), list):  # version 4 has a mapping under that name
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_json(path, {name: value for name, value in settings.items() if name not in _ONLY_IN_5})
