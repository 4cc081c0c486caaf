"""Weights of the native encoder to Hugging Face models and back, nothing lost on the way."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

from pretrain.model.encoder import Encoder, EncoderShape

State = dict[str, Tensor]
BertModel = BertForMaskedLM | BertLMHeadModel  # both name their weights alike

_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp_in": "intermediate.dense",
    "mlp_out": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_TOP = {
    "word_embedding": "bert.embeddings.word_embeddings.weight",
    "position_embedding": "bert.embeddings.position_embeddings.weight",
    "type_embedding": "bert.embeddings.token_type_embeddings.weight",
    "embedding_norm.weight": "bert.embeddings.LayerNorm.weight",
    "embedding_norm.bias": "bert.embeddings.LayerNorm.bias",
    "head_dense.weight": "cls.predictions.transform.dense.weight",
    "head_dense.bias": "cls.predictions.transform.dense.bias",
    "head_norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "head_norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "decoder_bias": "cls.predictions.bias",
}
_VOCABULARY = ("word_embedding", "decoder_bias")  # padded to a multiple of 64 in the native encoder


def to_bert(state: State, shape: EncoderShape) -> State:
    """A native state, or gradients under the same names, as BERT's models name them (tied decoder left out)."""
    found = {}
    for native, hugging_face in _TOP.items():
        tensor = state[native]
        found[hugging_face] = tensor[: shape.vocab_size] if native in _VOCABULARY else tensor
    for native, hugging_face in _layer_names(shape):
        found[hugging_face] = state[native]
    for layer in range(shape.layers):
        for kind in ("weight", "bias"):
            parts = state[f"layers.{layer}.qkv.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                found[f"bert.encoder.layer.{layer}.attention.self.{name}.{kind}"] = part
    return {name: tensor.contiguous() for name, tensor in found.items()}


def from_bert(state: State, shape: EncoderShape) -> State:
    """The reverse of `to_bert`; rows that pad the vocabulary come out as zeros (see Encoder.neutralize_padding)."""
    found = {}
    for native, hugging_face in _TOP.items():
        tensor = state[hugging_face]
        if native in _VOCABULARY:
            padding = tensor.new_zeros(shape.padded_vocab_size - shape.vocab_size, *tensor.shape[1:])
            tensor = torch.cat([tensor, padding])
        found[native] = tensor
    for native, hugging_face in _layer_names(shape):
        found[native] = state[hugging_face]
    for layer in range(shape.layers):
        for kind in ("weight", "bias"):
            names = (f"bert.encoder.layer.{layer}.attention.self.{part}.{kind}" for part in ("query", "key", "value"))
            found[f"layers.{layer}.qkv.{kind}"] = torch.cat([state[name] for name in names])
    return found


def bert_config(shape: EncoderShape) -> BertConfig:
    """The configuration under which the class of `bert_model` computes what the native encoder computes."""
    return BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.max_positions,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=shape.norm_eps,
        initializer_range=shape.init_std,
        pad_token_id=shape.pad_id,
        is_decoder=shape.causal,
    )


def bert_model(state: State, shape: EncoderShape) -> BertModel:
    """A Hugging Face model with the native weights, fp32, in evaluation mode: BertLMHeadModel if it is causal."""
    model: BertModel = (BertLMHeadModel if shape.causal else BertForMaskedLM)(bert_config(shape))
    missing, unexpected = model.load_state_dict(to_bert(state, shape), strict=False)
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    if unexpected or set(missing) - tied:
        raise RuntimeError(f"{type(model).__name__} has other weights than expected: {missing=}, {unexpected=}")
    model.tie_weights()
    return model.eval()


def encoder_from_bert(model: BertModel) -> Encoder:
    """A native encoder with the weights of a Hugging Face model."""
    config = model.config
    shape = EncoderShape(
        vocab_size=config.vocab_size,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        intermediate=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        pad_id=config.pad_token_id or 0,
        norm_eps=config.layer_norm_eps,
        init_std=config.initializer_range,
        causal=config.is_decoder,
    )
    encoder = Encoder(shape)
    encoder.load_state_dict(from_bert(model.state_dict(), shape))
    encoder.neutralize_padding()
    return encoder


def _layer_names(shape: EncoderShape) -> Iterator[tuple[str, str]]:
    for layer in range(shape.layers):
        for native, hugging_face in _LAYER.items():
            for kind in ("weight", "bias"):
                yield f"layers.{layer}.{native}.{kind}", f"bert.encoder.layer.{layer}.{hugging_face}.{kind}"
