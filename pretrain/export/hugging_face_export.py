"""From a checkpoint to a folder that `transformers` loads: config, safetensors weights, tokenizer, model card."""

import errno
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils.logging import disable_progress_bar

from data_prep.errors import UserError
from data_prep.files import atomic_folder
from data_prep.format import TokenizerInfo
from pretrain import checkpoint
from pretrain.config import Config
from pretrain.engine import whole_weights
from pretrain.export.export_location import chosen_checkpoint, export_folder
from pretrain.export.model_card import model_card
from pretrain.export.transformers_folder import save_model
from pretrain.guards import state_problem
from pretrain.model import build, exported, longest_text, named_ids
from pretrain.optim import AVERAGE, optimizer_order
from pretrain.run import RunFolder


def export_run(run: Path, step: int | None, out: Path | None, averaged: bool = False) -> Path:
    """Export a run's checkpoint.

    Args:
        step: which checkpoint; the newest by default.
        out: folder to write, which must be new or empty; RUN/exports/step-N by default, or step-N-ema.
        averaged: the averaged weights of optim.ema.

    Returns:
        The folder written.

    Raises:
        UserError: if there is no such checkpoint, it is damaged or has no averaged weights, or `out` is in use.
    """
    folder = RunFolder(run)
    found = chosen_checkpoint(folder, step)
    problem = checkpoint.verify(found) or state_problem(checkpoint.read(found))
    if problem:
        raise UserError(f"{found} is damaged and cannot be exported: {problem}")
    saved = checkpoint.read(found)
    files = [path.name for path in folder.tokenizer.iterdir()] if folder.tokenizer.is_dir() else []
    if TokenizerInfo.digest(folder.tokenizer, files) != saved.state["identity"]["data.train (tokenizer)"]:
        raise UserError(f"{folder.tokenizer} is not the tokenizer that the run was trained with")
    out = export_folder(folder, found, out, averaged)
    try:
        with atomic_folder(out) as temporary:
            _write(temporary, saved, folder, averaged)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise UserError(f"{out} was made by another process meanwhile") from error
        raise
    return out


def native_state(saved: checkpoint.Checkpoint, averaged: bool = False) -> dict[str, Tensor]:
    """The fp32 weights of a verified checkpoint, or their averages, by native name.

    Raises:
        UserError: if it has no averages.
    """
    if averaged and saved.state["config"]["optim"].get("ema") is None:
        raise UserError(f"{saved.path} has no averaged weights: its run had no optim.ema; export it without --ema")
    model = build(saved.state["shape"], seed=0).float()
    parameters = dict(model.named_parameters())
    shapes = {name: parameters[name].shape for name in optimizer_order(model)}
    which = AVERAGE if averaged else None
    for name, weights in whole_weights(saved.path / "deepspeed", saved.state["layout"], shapes, which).items():
        parameters[name].data.copy_(weights)
    return model.state_dict()


def _write(out: Path, saved: checkpoint.Checkpoint, folder: RunFolder, averaged: bool) -> None:
    model = exported(native_state(saved, averaged), saved.state["shape"])
    longest = _longest_text(model, saved)
    write_model(model, folder.tokenizer, longest, out)
    (out / "README.md").write_text(model_card(folder.path.name, saved, averaged, model, longest))


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


def _longest_text(model: PreTrainedModel, saved: checkpoint.Checkpoint) -> int | None:
    """Tokens of the longest text that the model reads. Rotary positions end only where the config sets an end."""
    config = Config.model_validate(saved.state["config"]).model
    return None if config.arch == "modernbert" and config.max_positions is None else longest_text(model)
