"""Weights to begin a run with: those of a Hugging Face BERT, instead of random ones."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer

from data_prep.errors import UserError
from data_prep.files import sha256_file
from pretrain.model.encoder import Encoder, EncoderShape
from pretrain.model.families import State, from_bert

# What BertForMaskedLM's configuration calls the sizes, and where they are set here.
_SIZES = {
    "num_hidden_layers": ("layers", "model.size.layers"),
    "hidden_size": ("hidden", "model.size.hidden"),
    "num_attention_heads": ("heads", "model.size.heads"),
    "intermediate_size": ("intermediate", "model.size.intermediate"),
}


def weights_file(folder: Path) -> Path:
    """Where a Hugging Face folder has its weights."""
    return folder / "model.safetensors"


def digest_of(folder: Path) -> str:
    """What tells the weights of a folder from others: the SHA-256 of the file."""
    try:
        return sha256_file(weights_file(folder))
    except OSError as error:
        raise UserError(f"model.init: {weights_file(folder)} cannot be read ({error.strerror})") from error


def initial_state(folder: Path, shape: EncoderShape, tokenizer: Path | None = None) -> State:
    """The weights of a Hugging Face BertForMaskedLM in fp32, by native name; of its positions as many as the shape has.

    Read are config.json, model.safetensors and tokenizer.json; nothing is unpickled or executed.

    Args:
        tokenizer: folder of the data's tokenizer, to compare the vocabulary with where the model has one.

    Raises:
        UserError: if the folder holds no such model, or one of another shape or vocabulary.
    """
    _check_config(folder, _read_config(folder), shape)
    if tokenizer and (folder / "tokenizer.json").is_file() and (tokenizer / "tokenizer.json").is_file():
        _check_vocabulary(folder, tokenizer)
    state = {_modern(name): tensor.float() for name, tensor in _read_weights(folder).items()}
    positions = "bert.embeddings.position_embeddings.weight"
    try:
        state[positions] = state[positions][: shape.max_positions]
        found = from_bert(state, shape)
    except KeyError as error:
        raise UserError(f"model.init: {folder} is no BertForMaskedLM: its weights lack {error}") from None
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


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(
            f"model.init: {folder} is no folder; give one that `maskwright export` or save_pretrained wrote"
        )
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise UserError(f"model.init: {folder} has no config.json, so it is no Hugging Face model") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"model.init: {folder / 'config.json'} cannot be read ({error})") from None
    if not isinstance(config, dict) or config.get("model_type") != "bert":
        kind = config.get("model_type") if isinstance(config, dict) else config
        raise UserError(f"model.init: {folder} holds a model of type {kind!r}; only BERT can be taken up")
    return config


def _check_config(folder: Path, config: dict[str, Any], shape: EncoderShape) -> None:
    """What differs from the shape in all that the native encoder has one of."""
    wrong = []
    for name, (ours, key) in _SIZES.items():
        if config.get(name) != (wanted := getattr(shape, ours)):
            wrong.append(f"its {name} is {config.get(name)} and {key} is {wanted}")
    if config.get("vocab_size") != shape.vocab_size:
        wrong.append(
            f"its vocabulary has {config.get('vocab_size')} tokens and that of data.train {shape.vocab_size}: prepare "
            "the data with its own tokenizer"
        )
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < shape.max_positions:
        wrong.append(f"it has {positions} positions, and rows or model.max_positions need {shape.max_positions}")
    fixed = {
        "hidden_act": ("gelu", "gelu"),
        "position_embedding_type": ("absolute", "absolute"),
        "layer_norm_eps": (1e-12, shape.norm_eps),
        "tie_word_embeddings": (True, True),
        "type_vocab_size": (2, 2),
        "is_decoder": (False, False),
    }
    for name, (default, wanted) in fixed.items():
        if config.get(name, default) != wanted:
            wrong.append(f"its {name} is {config[name]!r}, and only {wanted!r} can be trained")
    if wrong:
        raise UserError(f"model.init: {folder} does not fit: {'; '.join(wrong)}")


def _check_vocabulary(folder: Path, tokenizer: Path) -> None:
    """A vocabulary of the same size may be another, under which the weights mean nothing."""
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


def _read_weights(folder: Path) -> State:
    path = weights_file(folder)
    if not path.is_file():
        raise UserError(
            f"model.init: {folder} has no model.safetensors, the only file of weights that is read; save it again with "
            "save_pretrained of transformers, in one file"
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"model.init: {path} cannot be read ({error})") from None


def _modern(name: str) -> str:
    """The name of a weight; the first BERTs have the norms' under TensorFlow's."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
