"""Initial weights from a Hugging Face model, instead of random ones."""

import reprlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from data_prep.errors import MissingFile, UserError, one_line
from data_prep.reading import MAX_CONFIG_BYTES, open_regular, read_json, shown_path
from pretrain.model.encoder import Encoder
from pretrain.model.model_description import EncoderShape, weights_file

# Sizes that must be equal: the name in transformers, and the key here.
_SIZES = {
    "layers": ("num_hidden_layers", "model.size.layers"),
    "hidden": ("hidden_size", "model.size.hidden"),
    "heads": ("num_attention_heads", "model.size.heads"),
    "intermediate": ("intermediate_size", "model.size.intermediate"),
}
_COMPUTED = ("norm_eps", "first_position", "global_every")
# Settings that may change for the same weights, by key.
_FREE = {
    "window": "model.local_attention",
    "rope_theta": "model.global_rope_theta",
    "local_rope_theta": "model.local_rope_theta",
}


def check_folder(folder: Path, shape: EncoderShape, tokenizer: Path | None = None) -> EncoderShape:
    """The own shape of a Hugging Face model that a run can begin with; its weights are not read.

    Args:
        shape: shape of the run. tokenizer: as for initial_state.

    Raises:
        UserError: as initial_state.
    """
    theirs = _checked_shape(folder, _read_config(folder, shape.arch), shape)
    if tokenizer and (folder / "tokenizer.json").is_file() and (tokenizer / "tokenizer.json").is_file():
        _check_vocabulary(folder, tokenizer)
    if not weights_file(folder).is_file():
        raise UserError(
            f"model.init: {folder} has no model.safetensors, the only file of weights that is read; save it again with "
            "save_pretrained of transformers, in one file"
        )
    return theirs


def initial_state(
    folder: Path, shape: EncoderShape, tokenizer: Path | None = None, say: Callable[[str], None] = lambda line: None
) -> dict[str, Tensor]:
    """The weights of a Hugging Face model in fp32, by native name; of its positions as many as the shape has.

    Read are config.json, model.safetensors and tokenizer.json; nothing is unpickled or executed.

    Args:
        tokenizer: folder of the data's tokenizer, to compare the vocabulary with where the model has one.
        say: prints each setting that differs from the model's: rotary base, window.

    Raises:
        UserError: if the folder holds no such model, or one of another shape or vocabulary.
    """
    from pretrain.model.families import from_hugging_face

    theirs = check_folder(folder, shape, tokenizer)
    for name, key in _FREE.items():
        if (was := getattr(theirs, name)) != (now := getattr(shape, name)):
            say(f"model.init: {folder} was trained with {key} {was:g}, and goes on with {now:g}")
    state = {_modern(name): tensor.float() for name, tensor in _read_weights(folder).items()}
    try:
        if not shape.rotary:
            positions = f"{shape.arch}.embeddings.position_embeddings.weight"
            state[positions] = state[positions][: shape.first_position + shape.max_positions]
        found = from_hugging_face(state, replace(shape, causal=theirs.causal))
    except KeyError as error:
        raise UserError(f"model.init: {folder} holds no masked language model: its weights lack {error}") from None
    except (IndexError, RuntimeError) as error:
        raise UserError(f"model.init: {weights_file(folder)} does not go with its config.json ({error})") from None
    with torch.device("meta"):
        wanted = Encoder(shape).state_dict()
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            raise UserError(
                f"model.init: {weights_file(folder)} does not go with its config.json, by which {name} is "
                f"{[*tensor.shape]}: it is {[*found[name].shape]}"
            )
    return found


def _read_config(folder: Path, arch: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(
            f"model.init: {folder} is no folder; give one that `maskwright export` or save_pretrained wrote"
        )
    try:
        config: dict[str, Any] = read_json(folder / "config.json", dict[str, Any], MAX_CONFIG_BYTES)
    except MissingFile:
        raise UserError(
            f"model.init: {folder} has no config.json, so it is no Hugging Face model. Name a folder that `maskwright "
            "export` or save_pretrained wrote."
        ) from None
    except UserError as error:
        raise UserError(one_line(f"model.init: {error}")) from None
    if config.get("model_type") not in (arch, f"{arch}-decoder"):
        kind = reprlib.repr(config.get("model_type"))
        raise UserError(f"model.init: {folder} holds a model of type {kind}, and model.arch is {arch!r}")
    return config


def _checked_shape(folder: Path, values: dict[str, Any], shape: EncoderShape) -> EncoderShape:
    """The model's own shape, which differs from the wanted one in nothing that its weights depend on."""
    from transformers import AutoConfig

    from pretrain.model.families import shape_of

    kind = values.pop("model_type")
    try:
        theirs = shape_of(AutoConfig.for_model(kind, **values))
    except UserError as error:
        raise UserError(f"model.init: {folder} does not fit: {error}") from None
    except Exception as error:  # transformers' validators raise several kinds
        reason = " ".join(str(error).split())
        raise UserError(f"model.init: {folder / 'config.json'} is no configuration of a model ({reason})") from None
    wrong = []
    for name, (hugging_face, key) in _SIZES.items():
        if (found := getattr(theirs, name)) != (wanted := getattr(shape, name)):
            wrong.append(f"its {hugging_face} is {found} and {key} is {wanted}")
    if theirs.vocab_size != shape.vocab_size:
        wrong.append(
            f"its vocabulary has {theirs.vocab_size} tokens and that of data.train {shape.vocab_size}: prepare "
            "the data with its own tokenizer"
        )
    if not shape.rotary and theirs.max_positions < shape.max_positions:
        wrong.append(
            f"its table of positions ends at {theirs.max_positions}, and rows or model.max_positions need "
            f"{shape.max_positions}: learned positions cannot be added to"
        )
    for name in _COMPUTED:
        if (found := getattr(theirs, name)) != (wanted := getattr(shape, name)):
            wrong.append(f"its {name} is {found}, and only {wanted} can be trained")
    if wrong:
        raise UserError(f"model.init: {folder} does not fit: {'; '.join(wrong)}")
    return theirs


def _check_vocabulary(folder: Path, tokenizer: Path) -> None:
    """Compare vocabularies: another one of the same size would make the weights meaningless."""
    try:
        theirs, ours = (_vocabulary(path) for path in (folder, tokenizer))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise UserError(
            f"model.init: the tokenizer of {folder} cannot be compared with that of data.train ({error})"
        ) from None
    if theirs != ours:
        raise UserError(
            f"model.init: {folder} has another vocabulary than data.train; prepare the data with its own tokenizer"
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(with_added_tokens=True)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = weights_file(folder)
    try:
        open_regular(path).close()
        return load_file(path)
    except UserError as error:
        raise UserError(one_line(f"model.init: {error}")) from None
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(one_line(f"model.init: {shown_path(path)} cannot be read ({error})")) from None


def _modern(name: str) -> str:
    """The name of a weight; the first BERTs have the norms' under TensorFlow's."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
