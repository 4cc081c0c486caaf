"""Conversion of weights and configurations between the native encoder and Hugging Face models, without loss."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    EsmConfig,
    EsmForMaskedLM,
    EuroBertConfig,
    EuroBertForMaskedLM,
    ModernBertConfig,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
)

from data_prep.common.errors import UserError
from pretrain.model.encoder import Encoder
from pretrain.model.model_description import EncoderShape

MODELS: dict[str, dict[bool, Any]] = {
    "bert": {False: BertForMaskedLM, True: BertLMHeadModel},
    "roberta": {False: RobertaForMaskedLM, True: RobertaForCausalLM},
    "modernbert": {False: ModernBertForMaskedLM, True: ModernBertDecoderForCausalLM},
    "eurobert": {False: EuroBertForMaskedLM},
    "esm": {False: EsmForMaskedLM},
}
# Required values of a configuration, so that the native encoder computes the same.
_DECISIVE = (
    "hidden_act",
    "hidden_activation",
    "type_vocab_size",
    "tie_word_embeddings",
    "layer_types",
    "norm_bias",
    "attention_bias",
    "mlp_bias",
    "decoder_bias",
    "classifier_bias",
    "classifier_activation",
    "add_cross_attention",
    "head_dim",
    "rope_parameters",
    "is_decoder",
    "is_folding_model",
    "position_embedding_type",
    "emb_layer_norm_before",
    "token_dropout",
)

Weights = dict[str, Tensor]

_MODERN_CAUSAL = "modernbert-decoder"  # transformers' name for a causal ModernBERT
_WINDOW_EXTRA = 2  # its window counts one side, including the token itself
VOCABULARY = ("word_embedding", "output_embedding", "decoder_bias")  # padded to a multiple of 64 in the native encoder

_SIZES = {  # of a shape, and what transformers calls them
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "init_std": "initializer_range",
}
_BERT_LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp_in": "intermediate.dense",
    "mlp_out": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_BERT_HEAD = {
    "head_dense": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.LayerNorm",
    "decoder_bias": "cls.predictions.bias",
}
_ROBERTA_HEAD = {"head_dense": "lm_head.dense", "head_norm": "lm_head.layer_norm", "decoder_bias": "lm_head.bias"}
_MODERN_LAYER = {
    "attention_norm": "attn_norm",
    "qkv": "attn.Wqkv",
    "attention_out": "attn.Wo",
    "mlp_norm": "mlp_norm",
    "mlp_in": "mlp.Wi",
    "mlp_out": "mlp.Wo",
}
_MODERN_TOP = {
    "word_embedding": "model.embeddings.tok_embeddings.weight",
    "embedding_norm": "model.embeddings.norm",
    "final_norm": "model.final_norm",
    "head_dense": "head.dense",
    "head_norm": "head.norm",
    "decoder_bias": "decoder.bias",
}
_MODERN_CAUSAL_LAYER = {"qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj")}
_MODERN_CAUSAL_HEAD = {"head_dense": "lm_head.dense", "head_norm": "lm_head.norm"}
_EURO_LAYER = {
    "attention_norm": "input_layernorm",
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp_in": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp_out": "mlp.down_proj",
}
_EURO_TOP = {
    "word_embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm",
    "output_embedding": "lm_head.weight",
}
_ESM_LAYER = _BERT_LAYER | {"attention_norm": "attention.LayerNorm", "mlp_norm": "LayerNorm"}
# The same tensors as others, under a second name; ESM's frequencies; its contact head, which is not trained.
_NOT_NATIVE = ("decoder.weight", "decoder.bias", "inv_freq", "regression.weight", "regression.bias")


def to_hugging_face(state: Weights, shape: EncoderShape) -> Weights:
    """A native state, or gradients under the same names, as transformers names them (tied tensors once)."""
    named: Weights = {}
    for native, name in _names(state, shape):
        tensor = state[native]
        if native in VOCABULARY:
            tensor = tensor[: shape.vocab_size]
        parts = tensor.split(shape.stacked[native.split(".")[-2]]) if isinstance(name, tuple) else (tensor,)
        named |= dict(zip(name if isinstance(name, tuple) else (name,), parts, strict=True))
    return {name: tensor.contiguous() for name, tensor in named.items()}


def from_hugging_face(state: Weights, shape: EncoderShape) -> Weights:
    """The reverse. Padding rows of the vocabulary are zeros (see Encoder.reset_padding_rows)."""
    named: Weights = {}
    for native, name in _names(Encoder(shape).state_dict(), shape):
        tensor = torch.cat([state[part] for part in name]) if isinstance(name, tuple) else state[name]
        if native in VOCABULARY:
            padding = tensor.new_zeros(shape.padded_vocab_size - shape.vocab_size, *tensor.shape[1:])
            tensor = torch.cat([tensor, padding])
        named[native] = tensor
    return named


def native_encoder(model: PreTrainedModel) -> Encoder | None:
    """A native encoder with the weights of a model of transformers; None for another architecture."""
    try:
        shape = shape_of(model.config)
    except UserError:
        return None
    encoder = Encoder(shape)
    encoder.load_state_dict(from_hugging_face(model.state_dict(), shape))
    encoder.reset_padding_rows()
    return encoder.eval()


def hugging_face_config(shape: EncoderShape) -> PretrainedConfig:
    """The configuration under which transformers computes what the native encoder computes."""
    common: dict[str, Any] = {theirs: getattr(shape, ours) for ours, theirs in _SIZES.items()}
    common |= {
        "max_position_embeddings": shape.first_position + shape.max_positions,
        "pad_token_id": shape.pad_id,
        "bos_token_id": None,  # the defaults of the families, here and below, belong to another vocabulary
        "eos_token_id": None,
    }
    if shape.sep_id is not None:  # transformers has no prefix attention, and ignores it
        common["prefix_sep_token_id"] = shape.sep_id
    if shape.arch == "modernbert":
        return _modern_config(shape, common)
    if shape.arch == "eurobert":
        return EuroBertConfig(
            **common,
            mask_token_id=shape.pad_id,  # until the export knows it; the default is not in the vocabulary
            num_key_value_heads=shape.key_heads,
            hidden_act="silu",
            rms_norm_eps=shape.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        )
    if shape.arch == "esm":
        return EsmConfig(
            **common | {"hidden_act": "gelu"},  # as in the published models; the class does not know it
            mask_token_id=shape.mask_id,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=shape.norm_eps,
            position_embedding_type="rotary",
            rope_theta=shape.rope_theta,
            emb_layer_norm_before=False,
            token_dropout=True,
        )
    config = RobertaConfig if shape.arch == "roberta" else BertConfig
    return config(
        **common,
        type_vocab_size=shape.type_rows,
        hidden_act="gelu",
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        layer_norm_eps=shape.norm_eps,
        is_decoder=shape.causal,
    )


def _modern_config(shape: EncoderShape, common: dict[str, Any]) -> PretrainedConfig:
    kinds = ["full_attention" if shape.reach(layer) is None else "sliding_attention" for layer in range(shape.layers)]
    values = common | {
        "cls_token_id": None,
        "sep_token_id": None,
        "norm_eps": shape.norm_eps,
        "embedding_dropout": shape.dropout,
        "attention_dropout": shape.dropout,
        "mlp_dropout": shape.dropout,
        "local_attention": shape.window,
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": shape.rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": shape.local_rope_theta},
        },
    }
    if not shape.causal:
        return ModernBertConfig(**values, classifier_pooling="mean")  # as in the published models: [CLS] is not trained
    ids = dict.fromkeys(("bos_token_id", "cls_token_id", "sep_token_id"), shape.pad_id)
    return ModernBertDecoderConfig(**values | ids | {"local_attention": shape.window + _WINDOW_EXTRA})


def shape_of(config: PretrainedConfig) -> EncoderShape:
    """The native shape of a Hugging Face configuration.

    Raises UserError for a model of another kind, or one that computes something else.
    """
    kind = config.model_type
    arch = "modernbert" if kind == _MODERN_CAUSAL else kind
    if arch not in MODELS:
        raise UserError(f"a model of the kind {kind!r} has no native form; there are {', '.join(MODELS)}")
    values: dict[str, Any] = {ours: getattr(config, theirs) for ours, theirs in _SIZES.items()}
    values |= {"arch": arch, "pad_id": config.pad_token_id or 0}
    if arch == "roberta" and config.pad_token_id in (config.bos_token_id, config.eos_token_id):
        raise UserError("a roberta model whose pad token is also another token counts positions in its own way")
    sep_id = getattr(config, "prefix_sep_token_id", None)
    values["sep_id"] = sep_id if isinstance(sep_id, int) else None
    first = values["pad_id"] + 1 if arch == "roberta" else 0
    values["max_positions"] = config.max_position_embeddings - first
    if arch == "modernbert":
        kinds, causal = config.layer_types, kind == _MODERN_CAUSAL
        ropes = config.rope_parameters
        if scaled := sorted({kind for kind in ropes if ropes[kind].get("rope_type", "default") != "default"}):
            raise UserError(f"a modernbert model with scaled rotary positions ({', '.join(scaled)}) has no native form")
        values |= {
            "norm_eps": config.norm_eps,
            "causal": causal,
            "window": (config.local_attention or 0) - (_WINDOW_EXTRA if causal else 0),
            # If only the first layer attends to whole documents, any larger number is right: prefer our default.
            "global_every": next(
                (n for n in range(1, len(kinds)) if kinds[n] == "full_attention"),
                max(len(kinds), EncoderShape.global_every),
            ),
            "rope_theta": ropes["full_attention"]["rope_theta"],
            "local_rope_theta": ropes["sliding_attention"]["rope_theta"],
        }
    elif arch == "eurobert":
        theta = config.rope_parameters["rope_theta"]
        values |= {"norm_eps": config.rms_norm_eps, "kv_heads": config.num_key_value_heads, "rope_theta": theta}
    elif arch == "esm":
        values |= {"norm_eps": config.layer_norm_eps, "rope_theta": config.rope_theta, "mask_id": config.mask_token_id}
    else:
        values |= {"norm_eps": config.layer_norm_eps, "causal": bool(config.is_decoder)}
    shape = EncoderShape(**values)
    required = hugging_face_config(shape)
    for name in _DECISIVE:
        wanted = getattr(required, name, None)
        if (value := getattr(config, name, wanted)) != wanted:
            raise UserError(f"a {kind} model with {name} {value!r} has no native form; it must be {wanted!r}")
    return shape


def hugging_face_model(state: Weights, shape: EncoderShape) -> PreTrainedModel:
    """A Hugging Face model with the native weights, fp32, in evaluation mode."""
    model = MODELS[shape.arch][shape.causal](hugging_face_config(shape))
    missing, unexpected = model.load_state_dict(to_hugging_face(state, shape), strict=False)
    if unexpected or any(not name.endswith(_NOT_NATIVE) for name in missing):
        raise RuntimeError(f"{type(model).__name__} has other weights than expected: {missing=}, {unexpected=}")
    if shape.arch == "esm":  # so that an export has the same bytes each time
        for parameter in model.esm.contact_head.parameters():
            torch.nn.init.zeros_(parameter)
    model.tie_weights()
    return model.eval()


def _names(state: Weights, shape: EncoderShape) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Pairs of native name and transformers name, or the names of the three parts of a merged matrix."""
    top, layers, in_layer = _tables(shape)
    for native in state:
        module, _, kind = native.rpartition(".")
        if not native.startswith("layers."):
            yield native, top[native] if native in top else f"{top[module]}.{kind}"
            continue
        _, number, part = module.split(".", 2)
        name = in_layer[part]
        parts = tuple(f"{layers}.{number}.{part}.{kind}" for part in ((name,) if isinstance(name, str) else name))
        yield native, parts[0] if isinstance(name, str) else parts


def _tables(shape: EncoderShape) -> tuple[dict[str, str], str, dict[str, Any]]:
    """transformers' names: outside the layers, of the list of layers, and within a layer."""
    if shape.arch == "modernbert":
        head, layer = (_MODERN_CAUSAL_HEAD, _MODERN_CAUSAL_LAYER) if shape.causal else ({}, {})
        return _MODERN_TOP | head, "model.layers", _MODERN_LAYER | layer
    if shape.arch == "eurobert":
        return _EURO_TOP, "model.layers", _EURO_LAYER
    embeddings = f"{shape.arch}.embeddings"
    top = {
        "word_embedding": f"{embeddings}.word_embeddings.weight",
        "position_embedding": f"{embeddings}.position_embeddings.weight",
        "type_embedding": f"{embeddings}.token_type_embeddings.weight",
        "embedding_norm": f"{embeddings}.LayerNorm",
        "final_norm": "esm.encoder.emb_layer_norm_after",
        **(_BERT_HEAD if shape.arch == "bert" else _ROBERTA_HEAD),
    }
    return top, f"{shape.arch}.encoder.layer", _ESM_LAYER if shape.arch == "esm" else _BERT_LAYER
