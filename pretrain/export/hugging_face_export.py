"""From a checkpoint to a folder that `transformers` loads: config, safetensors weights, tokenizer, model card."""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils.logging import disable_progress_bar

from data_prep.common.errors import UserError
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config, ObjectiveKind, View
from pretrain.engine import load_weights
from pretrain.export.model_card import model_card
from pretrain.export.transformers_folder import save_model
from pretrain.model import build, exported, longest_text, named_ids
from pretrain.run import RunFolder


def native_state(saved: Checkpoint, averaged: bool = False) -> dict[str, Tensor]:
    """The fp32 weights of a verified checkpoint, or their averages, by native name.

    Raises UserError if it has no averages.
    """
    if averaged and saved.state["config"]["optim"].get("ema") is None:
        raise UserError(f"{saved.path} has no averaged weights: its run had no optim.ema; export it without --ema")
    model = build(saved.state["shape"], seed=0).float()
    load_weights(saved, model, averaged)
    return model.state_dict()


def write_export(out: Path, saved: Checkpoint, folder: RunFolder, averaged: bool, kind: ObjectiveKind) -> None:
    """Write a verified checkpoint as a Hugging Face folder, for one of its objectives.

    A masked model that predicts one slot earlier has `prediction_lag` in its config, which Maskwright reads.
    """
    shape = saved.state["shape"]
    sep_id = shape.get("sep_id") if kind.view is View.PREFIX else None
    view = {} if shape["arch"] == "auto" else {"causal": kind.causal, "sep_id": sep_id}
    model = exported(native_state(saved, averaged), shape | view)
    if kind.lag and not kind.view.forward:
        model.config.update({"prediction_lag": kind.lag})
    config = Config.model_validate(saved.state["config"]).model
    endless = config.rotary and config.max_positions is None
    longest = None if endless else longest_text(model)
    write_model(model, folder.tokenizer, longest, out)
    (out / "README.md").write_text(model_card(folder.path.resolve().name, saved, averaged, model, longest, kind))


def write_model(model: PreTrainedModel, tokenizer_folder: Path, longest: int | None, out: Path) -> None:
    """Write a model with the tokenizer of its data set, which gets the special ids and the longest text of the model.

    Args:
        longest: tokens of the longest text that the model reads; None where there is no limit.
    """
    disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(
        str(tokenizer_folder), local_files_only=True, trust_remote_code=False
    )
    specials = {name: getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask")}
    ids = named_ids(model.config, specials)
    if model.can_generate():  # no causal model has learnt to end a text; what its kind must have, it gets
        ids = {name: id for name, id in ids.items() if getattr(model.config, name) is not None}
        model.generation_config.update(**ids)
    model.config.update(ids)
    tokenizer.model_max_length = longest or VERY_LARGE_INTEGER
    if getattr(model.config, "type_vocab_size", 0) < 2:  # the second of two texts would have a type without a row
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    save_model(model, tokenizer, out)
