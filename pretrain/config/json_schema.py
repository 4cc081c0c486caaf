"""A JSON schema of config files, for editors that complete and check keys."""

from typing import Any

from pretrain.config.model import PRESETS
from pretrain.config.schema import Config

_PATHS = ({"type": "string"}, {"type": "array", "items": {"type": "string"}})


def json_schema() -> dict[str, Any]:
    """The schema of pydantic, with the shorter forms that `load_config` accepts too (JSON Schema 2020-12)."""
    schema = Config.model_json_schema()
    parts = schema["$defs"]
    sizes = [*dict.fromkeys(name for presets in PRESETS.values() for name in presets)]
    _add_forms(parts["DataConfig"], "train", *_PATHS)
    _add_forms(parts["ModelConfig"], "size", {"enum": sizes})
    masking = parts["MaskingConfig"]["properties"]
    masking["mlm_probability"] = masking["rate"]
    return schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def _add_forms(section: dict[str, Any], key: str, *forms: dict[str, Any]) -> None:
    """Let a key have one of these forms too."""
    given = section["properties"][key]
    shared = {name: given.pop(name) for name in ("description", "default") if name in given}
    section["properties"][key] = shared | {"anyOf": [given, *forms]}
