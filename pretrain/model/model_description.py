"""Model description: what decides the parameters and the computation of a model. Does not import torch."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import sha256_file
from data_prep.common.reading import typed
from data_prep.format import TokenizerInfo
from data_prep.storage import cached_folder
from pretrain.config import Config, View


@dataclass(frozen=True)
class EncoderShape:
    """The shape of an encoder, as JSON values.

    arch: "bert", "roberta", "modernbert", "eurobert" or "esm".
    vocab_size: the tokenizer's, before padding.
    intermediate: width of the MLP; of each half if it is gated.
    max_positions: tokens of the longest document.
    causal: whether a token attends only to earlier tokens.
    dropout: share of activations and attention weights that are zeroed in training.
    window, global_every (modernbert): layers 0, n, 2n, ... attend to whole documents, the others to `window` tokens,
        half of them on either side.
    rope_theta, local_rope_theta (modernbert): base of the rotary frequencies in the two kinds of layers.
        eurobert and esm have the first in all layers.
    scaled_init (not modernbert): smaller initial weights before residual sums in deeper models.
    sep_id: the id that ends the source of a document, for models with prefix attention; None for others.
    kv_heads (eurobert): heads of key and value; None for as many as the query has.
    mask_id (esm): the id of mask tokens, for token dropout; None for others.
    """

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    max_positions: int
    pad_id: int
    norm_eps: float = 1e-12
    init_std: float = 0.02
    arch: str = "bert"
    causal: bool = False
    dropout: float = 0.0
    window: int = 128
    global_every: int = 3
    rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    scaled_init: bool = False
    sep_id: int | None = None
    kv_heads: int | None = None
    mask_id: int | None = None

    @property
    def view(self) -> View:
        """What its tokens see, where nothing else is said. Documents without a target are bidirectional in PREFIX."""
        return View.CAUSAL if self.causal else View.BIDIRECTIONAL if self.sep_id is None else View.PREFIX

    @property
    def padded_vocab_size(self) -> int:
        """A multiple of 64, for the GPU's matrix units."""
        return -(-self.vocab_size // 64) * 64

    @property
    def rotary(self) -> bool:
        """Whether positions are rotary, not a table, and norms come before each part, not after its residual sum."""
        return self.arch in ("modernbert", "eurobert", "esm")

    @property
    def biases(self) -> bool:
        """Whether linear layers and norms have biases."""
        return self.arch in ("bert", "roberta", "esm")

    @property
    def gated(self) -> bool:
        """Whether the MLP is gated: its first matrix then has two halves."""
        return self.arch in ("modernbert", "eurobert")

    @property
    def rms_norm(self) -> bool:
        """Whether norms are RMSNorm, not LayerNorm."""
        return self.arch == "eurobert"

    @property
    def embedding_norm(self) -> bool:
        """Whether a norm follows the embeddings."""
        return self.arch not in ("eurobert", "esm")

    @property
    def tied(self) -> bool:
        """Whether the decoder is the word embedding with a bias, after a dense layer and a norm; else only a matrix."""
        return self.arch != "eurobert"

    @property
    def key_heads(self) -> int:
        """Heads of key and value."""
        return self.kv_heads or self.heads

    @property
    def stacked(self) -> dict[str, tuple[int, ...]]:
        """Rows of the matrices that are merged in one linear layer, by its name."""
        keys = self.hidden // self.heads * self.key_heads
        rows = {"qkv": (self.hidden, keys, keys), "mlp_in": (self.intermediate,) * (1 + self.gated)}
        return {name: parts for name, parts in rows.items() if len(parts) > 1}

    @property
    def first_position(self) -> int:
        """Row of a document's first position in the table: RoBERTa's begins after the padding token's id."""
        return self.pad_id + 1 if self.arch == "roberta" else 0

    @property
    def type_rows(self) -> int:
        """Rows of the table of segment types; only the first is used."""
        return {"bert": 2, "roberta": 1}.get(self.arch, 0)

    def reach(self, layer: int) -> int | None:
        """Number of tokens that a token of a layer attends to on either side; None for the whole document."""
        return self.window // 2 if self.arch == "modernbert" and layer % self.global_every else None


Description = dict[str, Any]


def describe_model(config: Config, tokenizer: TokenizerInfo, steps_done: int = 0) -> Description:
    """All that decides a model's parameters and what it computes, after so many steps.

    Raises UserError if there is no such model.
    """
    if config.model.arch != "auto":
        last = config.phase_at(max(0, steps_done - 1)).config.model
        shape = _encoder_shape(config, tokenizer)
        return asdict(replace(shape, rope_theta=last.global_rope_theta, local_rope_theta=last.local_rope_theta))
    from pretrain.model.padded_model import padded_config

    assert config.model.config is not None  # which the configuration has checked
    return {"arch": "auto", "config": padded_config(config.model.config, config.longest_row, tokenizer)}


def _encoder_shape(config: Config, tokenizer: TokenizerInfo) -> EncoderShape:
    """The shape of a configuration's encoder, for the vocabulary of a data set."""
    model, size = config.model, config.model.size
    modern = model.arch == "modernbert"
    has_sources = any(kind.view is View.PREFIX for kind in config.objective_kinds)
    return EncoderShape(
        arch=model.arch,
        vocab_size=tokenizer.vocab_size,
        layers=size.layers,
        hidden=size.hidden,
        heads=size.heads,
        intermediate=size.intermediate or (3 * size.hidden // 2 if modern else 4 * size.hidden),
        max_positions=model.max_positions or config.longest_row,
        pad_id=tokenizer.special_ids["pad"],
        norm_eps=1e-12 if model.arch == "bert" else 1e-5,
        causal=config.objective_kind.causal,
        dropout=model.dropout,
        window=model.local_attention,
        rope_theta=model.global_rope_theta,
        local_rope_theta=model.local_rope_theta,
        scaled_init=model.scaled_init,
        sep_id=tokenizer.special_ids["sep"] if has_sources else None,
        kv_heads=size.kv_heads,
        mask_id=tokenizer.special_ids["mask"] if model.arch == "esm" else None,
    )


def read_description(stored: dict[str, Any]) -> Description:
    """A stored description, completed with the defaults of newer fields, which change nothing.

    Raises ValueError if it is not valid.
    """
    if stored.get("arch") == "auto":
        typed(dict[str, Any], stored.get("config"))
        return stored
    return asdict(typed(EncoderShape, stored))


def weights_file(folder: Path) -> Path:
    """The file with the weights of a Hugging Face folder."""
    return folder / "model.safetensors"


def weights_digest(init: Path, missing: str | None = None) -> str:
    """The SHA-256 of the file of the weights at model.init.

    Args:
        missing: the result if there is no such file; an error by default.
    """
    try:
        path = weights_file(cached_folder(init))
    except UserError:
        if missing:
            return missing
        raise
    if missing and not path.is_file():
        return missing
    try:
        return sha256_file(path)
    except OSError as error:
        raise UserError(f"model.init: {path} cannot be read ({error.strerror})") from error
