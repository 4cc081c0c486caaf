"""A finished model, as people name it: a Hugging Face folder, or a run, which is exported."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from data_prep.errors import UserError
from data_prep.reader import Dataset

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_CAUSAL = re.compile("ForCausalLM|LMHeadModel")
_MASKED = re.compile("ForMaskedLM|ForPreTraining|WithLMHead")


def model_folder(path: Path) -> Path:
    """The Hugging Face folder of a model: `path` itself, or of a run's newest checkpoint its export, made if missing.

    Raises:
        UserError: if it is neither, or the run has no checkpoint that can be exported.
    """
    from pretrain import checkpoint
    from pretrain.export import export_run
    from pretrain.run_folder import RunFolder

    if (path / "config.json").is_file():
        return path
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise UserError(f"{path} is neither a Hugging Face model (no config.json) nor a run (no config.yaml)")
    newest = max(checkpoint.committed(folder.checkpoints), default=None)
    if newest and (exported := folder.exports / newest[1].name / "config.json").is_file():
        return exported.parent
    return export_run(path, None, None)


def load_model(folder: Path, auto_class: Any, **options: Any) -> "PreTrainedModel":
    """A model of transformers in fp32 and evaluation mode, from local safetensors weights; no remote code is run.

    Args:
        auto_class: AutoModelForMaskedLM or a sibling.

    Raises:
        UserError: if the folder holds no such model.
    """
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    local = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    try:
        model = auto_class.from_pretrained(str(folder), **local, **options)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: no model for {auto_class.__name__} can be loaded from it ({reason})") from error
    return model.float().eval()


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer in a model's folder.

    Raises:
        UserError: if there is none.
    """
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():  # transformers would make an empty one
        raise UserError(f"{folder} holds no tokenizer.json; export the run anew, or copy its tokenizer there")
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} holds no tokenizer that can be loaded ({error})") from error


def is_causal(folder: Path) -> bool:
    """Whether the language model in a Hugging Face folder predicts each token from those before it, by its config.json.

    Raises:
        UserError: if config.json cannot be read, or the model has no language model head.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        named = " ".join(config.get("architectures") or ["?"])
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read ({error})") from error
    if config.get("is_decoder") or _CAUSAL.search(named):
        return True
    if not _MASKED.search(named):
        raise UserError(f"{folder} holds a model without a language model head ({named}), which predicts no tokens")
    return False


def load_language_model(folder: Path) -> tuple["PreTrainedModel", bool]:
    """A masked or a causal language model, whichever the folder holds, as `load_model`; and whether it is causal."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    causal = is_causal(folder)
    return load_model(folder, AutoModelForCausalLM if causal else AutoModelForMaskedLM), causal


def check_vocabulary(name: str, vocabulary: dict[str, int], dataset: Dataset) -> None:
    """Raise UserError if a model has another vocabulary than a data set: its ids would mean something else.

    Args:
        name: the model's.
        vocabulary: the model's tokens and their ids.
    """
    if not dataset.manifest.tokenizer.files:
        raise UserError(f"{dataset.location} carries no tokenizer, by which to see that it is the models'")
    dataset.check_tokenizer()
    ours = Tokenizer.from_file(str(dataset.tokenizer_path / "tokenizer.json"))
    if ours.get_vocab(with_added_tokens=True) != vocabulary:
        raise UserError(
            f"{name} has another vocabulary than {dataset.location}; prepare the text with the model's own tokenizer"
        )
