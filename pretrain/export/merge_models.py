"""Average the weights of several models of one architecture."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from data_prep.common.errors import UnusableInput
from data_prep.common.reading import MAX_CONFIG_BYTES, read_text, require_own_files
from pretrain.export.model_card import merged_card
from pretrain.export.resolve_model import load_language_model, load_tokenizer
from pretrain.export.run_export import new_folder
from pretrain.export.transformers_folder import save_model

_IN_TRAINING_ONLY = re.compile("dropout|dtype|initializer|_name_or_path|transformers_version|use_cache")


def merge_models(
    folders: Sequence[Path], weights: Sequence[float], title: str, out: Path, progress: Callable[[int, int, str], None]
) -> None:
    """Write the weighted mean of models as a Hugging Face folder. Memory holds its fp64 sum and one model at a time.

    Args:
        title: of the weights, for the model card. The last model's card gives the rest.
        out: folder to write, which must be new or empty.
        progress: (models done, number of models, current task).

    Raises UserError if a folder holds no language model or a link, the models differ in more than their weights, or
    another process makes `out` meanwhile.
    """
    for folder in folders:
        require_own_files(folder)
    first, *others = folders
    progress(0, len(folders), f"averaging {first}")
    model, tokenizer = load_language_model(first)[0], load_tokenizer(first)
    model.double()
    for total in _split(model)[0].values():
        total.mul_(weights[0])
    for done, (folder, weight) in enumerate(zip(others, weights[1:], strict=True), 1):
        progress(done, len(folders), f"averaging {folder}")
        problem = _add(model, load_language_model(folder)[0], weight)
        if load_tokenizer(folder).backend_tokenizer.to_str() != tokenizer.backend_tokenizer.to_str():
            problem = "their tokenizers differ"
        if problem:
            raise UnusableInput(f"{first} and {folder} cannot be merged: {problem}. Name models of one training run.")
    model.float()
    card = folders[-1] / "README.md"
    text = read_text(card, MAX_CONFIG_BYTES) if card.is_file() else f"# {out.name}\n"
    distinct = len({folder.name for folder in folders}) == len(folders)
    names = [folder.name if distinct else str(folder) for folder in folders]
    with new_folder(out) as temporary:
        save_model(model, tokenizer, temporary)
        (temporary / "README.md").write_text(merged_card(text, title, zip(names, weights, strict=True)))


def _add(total: PreTrainedModel, model: PreTrainedModel, weight: float) -> str | None:
    """Add the weighted weights of a model to the sum. Returns the difference if it is another kind of model."""
    if difference := _difference(total.config, model.config):
        return difference
    (sums, constants), (weights, others) = _split(total), _split(model)
    for name, value in constants.items():
        if not others[name].to(value.dtype).equal(value):
            return f"{name}, which is not trained, differs"
    for name, value in sums.items():
        value.add_(weights[name], alpha=weight)
    return None


def _split(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of a model by name, and what cannot be averaged: buffers and integers."""
    tensors = {name: parameter.data for name, parameter in model.named_parameters()}
    weights = {name: value for name, value in tensors.items() if value.is_floating_point()}
    rest = tensors | dict(model.named_buffers())
    return weights, {name: value for name, value in rest.items() if name not in weights}


def _difference(one: PretrainedConfig, other: PretrainedConfig) -> str | None:
    """The first setting that makes two models compute in different ways, and its values."""
    ours, theirs = one.to_dict(), other.to_dict()
    for name in sorted(ours.keys() | theirs.keys(), key=lambda name: (name != "model_type", name)):
        if ours.get(name) != theirs.get(name) and not _IN_TRAINING_ONLY.search(name):
            return f"{name} is {ours.get(name)} and {theirs.get(name)}"
    return None
