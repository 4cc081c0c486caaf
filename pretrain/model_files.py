"""Write a model and its tokenizer as a folder that transformers loads by name, in version 4.57 and in version 5."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.files import write_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

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


def _add_rotary_names(config: "PretrainedConfig") -> None:
    """Add version 4's names of a ModernBERT's rotary bases and layers. Without them, version 4 takes its defaults."""
    if config.model_type not in ("modernbert", "modernbert-decoder"):
        return
    kinds = config.layer_types
    every = next((n for n in range(1, len(kinds)) if kinds[n] == "full_attention"), len(kinds))
    config.update(
        {
            "global_rope_theta": config.rope_parameters["full_attention"]["rope_theta"],
            "local_rope_theta": config.rope_parameters["sliding_attention"]["rope_theta"],
            "global_attn_every_n_layers": every,
        }
    )


def _rename_tokenizer_settings(path: Path) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(settings.get("extra_special_tokens"), list):  # version 4 has a mapping under that name
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_json(path, {name: value for name, value in settings.items() if name not in _ONLY_IN_5})
