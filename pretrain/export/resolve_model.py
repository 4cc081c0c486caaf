"""A finished model, as users name it: a Hugging Face folder, a name of the Hub, or a run, which is exported."""

import re
import reprlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models

from data_prep.common.errors import UnusableInput, UserError, library_errors, one_line
from data_prep.common.reading import MAX_CONFIG_BYTES, open_regular, read_json, typed, unusable
from data_prep.common.urls import hub_hint
from data_prep.format import Dataset
from data_prep.storage import cached_folder, is_run, not_a
from data_prep.tokenizer import check_growth
from pretrain.checkpoint import committed, manifest_sha256
from pretrain.config import View
from pretrain.export.export_record import ExportRecord
from pretrain.export.run_export import chosen_checkpoint, export_run
from pretrain.run import RunFolder, step_name

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_CAUSAL = re.compile("ForCausalLM|LMHeadModel")
_AGAIN = "Export or copy it again."
_COPY_AGAIN = "export or copy the model again"
_MASKED = re.compile("ForMaskedLM|ForPreTraining|WithLMHead")


def check_model(path: Path) -> None:
    """Raise UserError unless `path` looks like a Hugging Face folder, or a run with a checkpoint; reads no weights."""
    if (path / "config.json").is_file():
        return
    if not is_run(path):
        wanted = "a Hugging Face model folder or a run folder"
        hint = "" if path.exists() else hub_hint(path, "model")
        raise not_a(path, wanted, f"Name a run folder, or a folder that `maskwright export` wrote.{hint}")
    chosen_checkpoint(RunFolder(path), None)


def model_folder(path: Path) -> Path:
    """The Hugging Face folder of a model: `path` itself, or of a run's newest checkpoint its export, made if missing.

    Of a name of the Hub it is the folder in the cache.

    Raises UserError if it is something else, or the run has no checkpoint that can be exported.
    """
    path = cached_folder(path)
    check_model(path)
    if (path / "config.json").is_file():
        return path
    return exported_folder(path, max(committed(RunFolder(path).checkpoints))[0])


def exported_folder(run: Path, step: int, view: View | None = None, averaged: bool = False) -> Path:
    """The Hugging Face folder of a checkpoint in RUN/exports, made if missing. UserError if of an earlier one."""
    folder = RunFolder(run).export_of(step, averaged, view and view.value)
    if not (folder / "config.json").is_file():
        try:
            export_run(run, step, None, averaged, view)
        except UserError:
            if not (folder / "config.json").is_file():  # else another process has made it meanwhile
                raise
    elif (path := RunFolder(run).checkpoints / step_name(step)).is_dir():
        record = ExportRecord.read(folder)
        if record and record.checkpoint_sha256 != manifest_sha256(path):
            raise UserError(f"{folder} is of an earlier checkpoint: step {step} was trained again. Remove the folder.")
    return folder


def model_config(folder: Path, **options: Any) -> "PretrainedConfig":
    """The configuration in config.json, with `options` instead of its values. Never names the attention.

    Raises:
        UserError: if the file cannot be read, an adapter replaces the model, or its weights are quantized.
        ValueError, KeyError and others of transformers: for a kind that it does not know, and wrong values.
    """
    from transformers import CONFIG_MAPPING

    from pretrain.model import without_attention

    values = read_json(folder / "config.json", dict[str, Any], MAX_CONFIG_BYTES, _COPY_AGAIN, nan=True)
    if (folder / "adapter_config.json").exists():  # transformers would load the model that it names
        raise UnusableInput(f"{folder} holds an adapter (adapter_config.json). Merge it into its model first.")
    if values.get("quantization_config"):  # some kinds load code from the hub
        advice = "name the folder of the model before it was quantized"
        raise unusable(folder / "config.json", "its weights are quantized", advice)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model of the kind {reprlib.repr(kind)} (model_type)")
    config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict(without_attention(values | options))
    return config


def load_model(folder: Path, auto_class: Any, new_head: bool = False, **options: Any) -> "PreTrainedModel":
    """A model of transformers in fp32 and evaluation mode, from local safetensors weights; no remote code is run.

    Args:
        auto_class: AutoModelForMaskedLM or a sibling.
        new_head: what comes after the encoder, a pooler included, may be missing or have other shapes, and is then
            drawn at random.

    Raises UserError if the folder holds no such model, or not all of it.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    _check_files(folder)
    local = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True, "output_loading_info": True}
    local["ignore_mismatched_sizes"] = new_head
    with library_errors(f"{folder}: no model for {auto_class.__name__} can be loaded from it", _AGAIN):
        model, info = auto_class.from_pretrained(str(folder), config=model_config(folder, **options), **local)
    encoder = f"{model.base_model_prefix}."
    missing = sorted(
        key
        for key in [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
        if not new_head or (key.startswith(encoder) and not key.startswith(f"{encoder}pooler."))
    )
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnusableInput(
            f"{folder} lacks weights that {type(model).__name__} needs ({missing[0]}{more}); export or copy it again, "
            "or give a model that was trained with this head"
        )
    return model.float().eval()


def _check_files(folder: Path) -> None:
    """Raise UserError for a pipe or a device in a model's folder, and for weights that its index names elsewhere."""
    for path in folder.iterdir():
        if path.exists() and not path.is_dir():
            open_regular(path).close()
    if (index := folder / "model.safetensors.index.json").exists():
        files = read_json(index, dict[str, Any]).get("weight_map")
        if not isinstance(files, dict) or not all(Path(str(name)).name == name for name in files.values()):
            raise unusable(index, "its weight_map names no files of this folder", _COPY_AGAIN)


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer in a model's folder; a BPE's dropout, a regularizer of training that makes ids random, is off.

    Raises UserError if the folder has no tokenizer that can be loaded.
    """
    from transformers import AutoTokenizer

    _check_files(folder)
    if not (folder / "tokenizer.json").is_file():  # transformers would make an empty one
        raise UnusableInput(f"{folder} holds no tokenizer.json; export the run again, or copy its tokenizer there")
    with library_errors(f"{folder} holds no tokenizer that can be loaded", _AGAIN):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if (most := int(min(tokenizer.model_max_length, 1e30))) < 1:
            raise ValueError(f"model_max_length is {most}")
        tokenizer.model_max_length = most
    check_growth(tokenizer.backend_tokenizer, folder)
    if isinstance(tokenizer.backend_tokenizer.model, models.BPE):
        tokenizer.backend_tokenizer.model.dropout = None
    return tokenizer


def ids_around(tokenizer: "PreTrainedTokenizerBase", folder: Path, causal: bool) -> dict[str, int]:
    """The special ids in the texts of a language model: cls, and of a masked model also sep and mask.

    Of many causal models bos is what cls is of others.

    Raises UserError if the tokenizer lacks one.
    """
    cls = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    ids = {"cls": cls} | ({} if causal else {"sep": tokenizer.sep_token_id, "mask": tokenizer.mask_token_id})
    if missing := [name for name, id in ids.items() if id is None]:
        raise UnusableInput(
            f"{folder}: its tokenizer has no {' and no '.join(missing)} token, which its model's texts need"
        )
    return ids


def is_causal(folder: Path) -> bool:
    """Whether the language model in a Hugging Face folder predicts each token from those before it, by its config.json.

    Raises UserError if config.json cannot be read, or the model has no language model head.
    """
    path = folder / "config.json"
    config = read_json(path, dict[str, Any], MAX_CONFIG_BYTES, _COPY_AGAIN, nan=True)
    try:
        named = " ".join(typed(list[str] | None, config.get("architectures")) or ["?"])
        is_decoder = typed(bool | None, config.get("is_decoder"))
    except ValueError as error:
        raise unusable(path, f"of architectures or is_decoder, {error}", _COPY_AGAIN) from None
    if is_decoder or _CAUSAL.search(named):
        return True
    if not _MASKED.search(named):
        raise UnusableInput(
            f"{folder} holds a model without a language model head ({one_line(named, 60)}), which predicts no "
            "tokens. Name one that `maskwright export` wrote."
        )
    return False


def load_language_model(folder: Path) -> tuple["PreTrainedModel", bool]:
    """A masked or a causal language model, whichever the folder holds, as `load_model`; and whether it is causal.

    Raises UserError also if it is an encoder with a causal head whose tokens see those that they are to predict.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    causal = is_causal(folder)
    model = load_model(folder, AutoModelForCausalLM if causal else AutoModelForMaskedLM)
    if causal and type(model.config) in AutoModelForMaskedLM._model_mapping and not model.config.is_decoder:
        raise UnusableInput(
            f"{folder} holds a {type(model).__name__} whose config.json does not say is_decoder: its tokens see those "
            "that they are to predict; set is_decoder to true if it was trained so"
        )
    return model, causal


def prediction_lag(model: "PreTrainedModel") -> int:
    """Slots from the state of a masked model that predicts to the token that it predicts; 0 for most models."""
    return int(getattr(model.config, "prediction_lag", 0) == 1)


def check_vocabulary(name: str, vocabulary: dict[str, int], dataset: Dataset) -> None:
    """Raise UserError if a model has another vocabulary than a data set: its ids would mean something else.

    Args:
        name: the model's.
        vocabulary: the model's tokens and their ids.
    """
    if not dataset.manifest.tokenizer.files:
        raise UnusableInput(f"{dataset.location} has no tokenizer to compare with the model's.")
    dataset.check_tokenizer()
    ours = Tokenizer.from_file(str(dataset.tokenizer_path / "tokenizer.json"))
    if ours.get_vocab(with_added_tokens=True) != vocabulary:
        raise UnusableInput(
            f"{name} has another vocabulary than {dataset.location}; prepare the text with the model's own tokenizer"
        )
