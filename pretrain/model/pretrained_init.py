"""Initial weights from a Hugging Face model, instead of random ones.

The model may have another vocabulary (`pretrain.model.vocabulary_transfer`) or be smaller (`pretrain.model.tiling`).
"""

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from data_prep.common.errors import MissingFile, UserError, library_errors, one_line
from data_prep.common.reading import MAX_CONFIG_BYTES, open_regular, read_json
from data_prep.common.urls import hub_hint
from data_prep.storage import cached_folder
from data_prep.tokenizer import describe_tokenizer
from pretrain.model.encoder import Encoder
from pretrain.model.model_description import EncoderShape, weights_file
from pretrain.model.tiling import tiled, with_noise

# Sizes that must be equal: the name in transformers, and the key here.
_SIZES = {
    "layers": ("num_hidden_layers", "model.size.layers"),
    "hidden": ("hidden_size", "model.size.hidden"),
    "heads": ("num_attention_heads", "model.size.heads"),
    "key_heads": ("num_key_value_heads", "model.size.kv_heads"),
    "intermediate": ("intermediate_size", "model.size.intermediate"),
}
# Settings that may change for the same weights, by key.
_FREE = {
    "window": "model.local_attention",
    "rope_theta": "model.global_rope_theta",
    "local_rope_theta": "model.local_rope_theta",
}
_PIECES = "or set model.init_vocabulary to pieces"
_COPY = "Copy the folder again."
_FOLDER_ADVICE = "Name a folder that `maskwright export` or save_pretrained wrote."


def check_init_folder(
    folder: Path, shape: EncoderShape, tokenizer: Path | None = None, vocabulary: str = "same", size: str = "same"
) -> EncoderShape:
    """The shape of a Hugging Face model that a run can begin with; its weights are not read.

    Args:
        folder: as model.init names it.
        shape: shape of the run. tokenizer, vocabulary, size: as for initial_state.

    Raises UserError as initial_state.
    """
    folder = cached_folder(folder)
    model_shape = _shape_of(folder, shape.arch)
    compared = tokenizer and all((path / "tokenizer.json").is_file() for path in (folder, tokenizer))
    is_padded = compared and model_shape.vocab_size > shape.vocab_size  # with rows that no token has
    counted = replace(model_shape, vocab_size=shape.vocab_size) if is_padded else model_shape
    if problems := "; ".join(_problems(counted, shape, vocabulary == "same", size == "same")):
        raise UserError(f"model.init: {folder} does not fit: {problems}")
    if vocabulary == "pieces":
        _check_tokenizer(folder, model_shape)
    elif tokenizer and compared:
        _check_vocabulary(folder, tokenizer)
    if not weights_file(folder).is_file():
        raise UserError(
            f"model.init: {folder} has no model.safetensors, the only file of weights that is read. Save the model "
            "again with save_pretrained of transformers, in one file."
        )
    return model_shape


def initial_state(
    folder: Path,
    shape: EncoderShape,
    tokenizer: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    vocabulary: str = "same",
    size: str = "same",
    seed: int = 0,
) -> dict[str, Tensor]:
    """The weights of a Hugging Face model in fp32, by native name, with as many positions as the shape has.

    Reads config.json, model.safetensors and the tokenizer; nothing is unpickled or executed.

    Args:
        folder: as model.init names it.
        tokenizer: folder of the data's tokenizer, to compare the vocabularies.
        say: prints each setting that differs from the model's: rotary base, window; and where embeddings come from.
        vocabulary, size: model.init_vocabulary and model.init_size. seed: of the noise in a larger model.

    Raises UserError if the folder holds no such model, or one of another shape or vocabulary.
    """
    from pretrain.model.vocabulary_transfer import token_pieces, transferred

    folder = cached_folder(folder)
    model_shape = check_init_folder(folder, shape, tokenizer, vocabulary, size)
    for name, key in _FREE.items():
        if (before := getattr(model_shape, name)) != (now := getattr(shape, name)):
            say(f"model.init: {folder} was trained with {key} {before:g}; this run uses {now:g}")
    own = replace(model_shape, max_positions=shape.max_positions)
    state = _native_state(folder, own)
    if vocabulary == "pieces":
        assert tokenizer is not None  # which a run always has
        pieces = token_pieces(folder, tokenizer)
        copied, averaged = sum(len(ids) == 1 for ids in pieces), sum(len(ids) > 1 for ids in pieces)
        say(
            f"model.init: of {len(pieces)} tokens, {copied} start with one embedding of {folder}, {averaged} with the "
            f"mean of several, {len(pieces) - copied - averaged} with the mean of all"
        )
        state = transferred(state, pieces, own, shape)
    elif own.vocab_size > shape.vocab_size:
        state = transferred(state, [[id] for id in range(shape.vocab_size)], own, shape)
    if any(getattr(own, name) != getattr(shape, name) for name in _SIZES):
        state = with_noise(tiled(state, own, shape), seed)
    return state


def _native_state(folder: Path, shape: EncoderShape) -> dict[str, Tensor]:
    """The weights of a folder, by native name; `shape` is the model's, with as many positions as the run has."""
    from pretrain.model.families import from_hugging_face

    state = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor.float()
        for name, tensor in _read_weights(folder).items()  # the first BERTs have TensorFlow's names of norms
    }
    mismatch = f"model.init: {weights_file(folder)} does not go with its config.json"
    try:
        if not shape.rotary:
            positions = f"{shape.arch}.embeddings.position_embeddings.weight"
            state[positions] = state[positions][: shape.first_position + shape.max_positions]
        native = from_hugging_face(state, shape)
    except KeyError as error:
        raise UserError(f"model.init: {folder} holds no masked language model: its weights lack {error}") from None
    except (IndexError, RuntimeError) as error:
        raise UserError(f"{mismatch} ({error})") from None
    with torch.device("meta"):
        wanted = Encoder(shape).state_dict()
    for name, tensor in wanted.items():
        if native[name].shape != tensor.shape:
            raise UserError(f"{mismatch}: {name} is {[*native[name].shape]}, not {[*tensor.shape]}")
    return native


def _shape_of(folder: Path, arch: str) -> EncoderShape:
    """The shape in a model's config.json."""
    from transformers import AutoConfig

    from pretrain.model.families import shape_of

    if not folder.is_dir():
        raise UserError(f"model.init: {folder} is no folder. {_FOLDER_ADVICE}{hub_hint(folder, 'model')}")
    try:
        config: dict[str, Any] = read_json(folder / "config.json", dict[str, Any], MAX_CONFIG_BYTES)
    except MissingFile:
        raise UserError(f"model.init: {folder} has no config.json. {_FOLDER_ADVICE}") from None
    except UserError as error:
        raise UserError(one_line(f"model.init: {error}")) from None
    kind = config.pop("model_type", None)
    if kind not in (arch, f"{arch}-decoder"):
        raise UserError(f"model.init: {folder} holds a model of type {reprlib.repr(kind)}, and model.arch is {arch!r}")
    try:
        with library_errors("its config.json is no configuration of a model", _FOLDER_ADVICE):
            return shape_of(AutoConfig.for_model(kind, **config))
    except UserError as error:
        raise UserError(f"model.init: {folder} does not fit: {error}") from None


def _problems(model: EncoderShape, shape: EncoderShape, same_vocabulary: bool, same_size: bool) -> Iterator[str]:
    """Differences between the shapes of the model and the run that matter for the weights."""
    sizes = {name: (getattr(model, name), getattr(shape, name)) for name in _SIZES}
    refused = [name for name, (given, wanted) in sizes.items() if given > wanted or (same_size and given < wanted)]
    for name in refused:
        hugging_face, key = _SIZES[name]
        yield f"its {hugging_face} is {sizes[name][0]} and {key} is {sizes[name][1]}"
    if refused and all(given <= wanted for given, wanted in sizes.values()):
        yield "to start a larger model from it, set model.init_size to tile"
    elif refused and not same_size:
        yield "only a larger model can start from it"
    elif not same_size and model.hidden * shape.heads != shape.hidden * model.heads:
        yield (
            f"its heads have {model.hidden // model.heads} dimensions and heads of model.size "
            f"{shape.hidden // shape.heads}: heads are copied whole, so change model.size.heads"
        )
    if same_vocabulary and model.vocab_size != shape.vocab_size:
        yield (
            f"its vocabulary has {model.vocab_size} tokens and that of data.train {shape.vocab_size}: prepare "
            f"the data with its own tokenizer, {_PIECES}"
        )
    if not shape.rotary and model.max_positions < shape.max_positions:
        yield (
            f"its table of positions ends at {model.max_positions}, and rows or model.max_positions need "
            f"{shape.max_positions}: learned positions cannot be added to"
        )
    for name in ("norm_eps", "global_every", *["first_position", "mask_id"] * same_vocabulary):
        if (given := getattr(model, name)) != (wanted := getattr(shape, name)):
            yield f"its {name} is {given}, and only {wanted} can be trained"


def _check_tokenizer(folder: Path, model: EncoderShape) -> None:
    """Check that the folder has a tokenizer whose ids all have embeddings."""
    try:
        ids = describe_tokenizer(folder).vocab_size
    except UserError as error:
        raise UserError(one_line(f"model.init: {error}")) from None
    if ids > model.vocab_size:
        raise UserError(
            f"model.init: the tokenizer of {folder} has {ids} tokens, but the model has {model.vocab_size} embeddings"
        )


def _check_vocabulary(folder: Path, tokenizer: Path) -> None:
    """Compare vocabularies: another one of the same size would make the weights meaningless."""
    with library_errors(
        f"model.init: the tokenizer of {folder} cannot be compared with the tokenizer of data.train", _COPY
    ):
        model, data = (Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab() for path in (folder, tokenizer))
    if model != data:
        raise UserError(
            f"model.init: {folder} has another vocabulary than data.train; prepare the data with its own tokenizer, "
            f"{_PIECES}"
        )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = weights_file(folder)
    with library_errors(f"model.init: {path} cannot be read", _COPY):
        open_regular(path).close()
        return load_file(path)
