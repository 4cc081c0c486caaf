"""Other masked language models of transformers, through padded batches: slower than the native encoder.

Each document of a stream becomes a separate row, padded to the longest. So documents do not see each other, and each
document's positions start at the beginning.
"""

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from data_prep.common.errors import UserError, library_errors, one_line
from data_prep.common.reading import MAX_CONFIG_BYTES, read_json
from data_prep.format import TokenizerInfo
from pretrain.masking import IGNORED, RowGroup
from pretrain.model.head import Choices, Prediction, by_group, choices_of, cross_entropy_sums

_FOREIGN_CODE = ("auto_map", "trust_remote_code")


class PaddedModel(nn.Module):
    """Wraps a model of transformers in the surface of pretrain.model.encoder.Encoder."""

    def __init__(self, config: PretrainedConfig, z_loss: float = 0.0):
        super().__init__()
        self.z_loss, self.pad_id = z_loss, int(config.pad_token_id)
        self.model = AutoModelForMaskedLM.from_config(config, trust_remote_code=False)

    def check_length(self, seq_len: int) -> None:
        """Raise UserError if the model does not take texts as long as a row."""
        if (longest := longest_text(self.model) or seq_len) < seq_len:
            raise UserError(
                f"model.config: the model takes texts of {longest} tokens, less than the longest row ({seq_len}); "
                f"raise max_position_embeddings by {seq_len - longest}"
            )

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        masked_positions: Tensor,
        labels: Tensor,
        seq_len: int,
        longest: int | None = None,
        top: int = 0,
        weights: Tensor | None = None,
        groups: tuple[RowGroup, ...] = (),
    ) -> Prediction | Choices:
        """As Encoder.forward, but all views are bidirectional. The host waits for the device: shapes vary."""
        starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
        real = tokens[starts.long()] != self.pad_id
        if bool(real.any()):  # documents of padding are left out, unless there are no others
            starts, ends = starts[real], ends[real]
        logits = document_logits(self.model, self.pad_id, tokens, starts, ends, masked_positions)
        if top:
            return choices_of(logits, labels, top)
        places = tuple(group.places for group in groups)
        loss, plain, correct = cross_entropy_sums(logits, labels, self.z_loss, weights, places)
        return Prediction(loss, plain, correct, by_group((labels != IGNORED).float(), places))


def document_logits(
    model: PreTrainedModel, pad_id: int, tokens: Tensor, starts: Tensor, ends: Tensor, places: Tensor
) -> Tensor:
    """Vocabulary logits [K, V] of a model of transformers at places [K] of a stream, each document being a row.

    The documents go from starts [D] to before ends [D], in their order.
    """
    starts = starts.long()
    lengths = ends - starts
    columns = torch.arange(int(lengths.max()), device=tokens.device)
    inside = columns < lengths[:, None]
    slots = (starts[:, None] + columns).clamp(max=len(tokens) - 1)
    ids = torch.where(inside, tokens[slots], pad_id)
    logits: Tensor = model(input_ids=ids, attention_mask=inside.long()).logits
    row = (torch.searchsorted(starts, places, right=True) - 1).clamp(min=0)
    column = (places - starts[row]).clamp(0, len(columns) - 1)
    return logits[row, column]


def padded_config(given: str | dict[str, Any], seq_len: int, tokenizer: TokenizerInfo) -> dict[str, Any]:
    """A configuration of transformers as JSON values, for the vocabulary of a data set.

    Args:
        given: the value of `model.config`: a folder with a config.json, such a file, or its content.

    Raises UserError if transformers has no masked language model of that kind, or it is too short.
    """
    values = dict(given if isinstance(given, dict) else _read(Path(given)))
    kind: Any = values.pop("model_type", None)
    kind = kind if isinstance(kind, str) else None
    if foreign := next((key for key in _FOREIGN_CODE if values.get(key)), None):
        raise UserError(f"model.config: {kind!r} brings code of its own ({foreign}), which Maskwright does not run")
    values |= {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.special_ids["pad"]}
    if kind in CONFIG_MAPPING:
        values |= named_ids(CONFIG_MAPPING[kind], tokenizer.special_ids)
    values.pop("transformers_version", None)
    config = _config(kind, values)
    if type(config) not in AutoModelForMaskedLM._model_mapping:
        raise UserError(f"model.config: transformers has no masked language model of the kind {kind!r}")
    longest = getattr(config, "max_position_embeddings", None)
    if longest and longest < seq_len:
        raise UserError(f"model.config: max_position_embeddings ({longest}) is less than the longest row ({seq_len})")
    with _settings_errors(kind):
        saved = {key: value for key, value in config.to_diff_dict().items() if key != "transformers_version"}
    with torch.device("meta"):  # without memory for weights
        padded_model(saved, seed=0)
    return saved


def named_ids(kind: Any, special_ids: Mapping[str, int]) -> dict[str, int]:
    """Special ids by the names that a configuration, or a kind of them, has: a text begins with cls and ends with sep.

    A family's default ids refer to its original vocabulary.
    """
    names = {"bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep", "mask": "mask"}
    return {f"{name}_token_id": special_ids[ours] for name, ours in names.items() if hasattr(kind, f"{name}_token_id")}


def longest_text(model: PreTrainedModel) -> int | None:
    """Tokens of the longest text that a model takes; None without a limit.

    Positions of RoBERTa and similar models start after the padding token's id, which their table names.
    """
    longest: int | None = getattr(model.config, "max_position_embeddings", None)
    tables = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    padding = [getattr(table, "padding_idx", None) for table in tables]
    return longest - max((1 + id for id in padding if id is not None), default=0) if longest else None


def padded_model(config: dict[str, Any], seed: int, z_loss: float = 0.0) -> PaddedModel:
    """The model of `padded_config`, with the family's own initialisation, the same on every rank."""
    values = dict(config)
    kind = values.pop("model_type")
    with torch.random.fork_rng(), _settings_errors(kind):
        torch.manual_seed(seed)
        return PaddedModel(_config(kind, values), z_loss)


def without_attention(values: Any) -> Any:
    """The values of a config.json without the attention and experts that it names, so that transformers chooses them.

    A name such as OWNER/NAME would make transformers download code from the hub, and run it.
    """
    if isinstance(values, list):
        return [without_attention(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {key: without_attention(value) for key, value in values.items() if "_implementation" not in str(key)}


def _config(kind: Any, values: dict[str, Any]) -> PretrainedConfig:
    if kind not in CONFIG_MAPPING:
        raise UserError(
            f"model.config: transformers has no masked language model of the kind {kind!r:.60} (model_type)"
        )
    with _settings_errors(kind):
        return AutoConfig.for_model(kind, **without_attention(values))


def _settings_errors(kind: str) -> AbstractContextManager[None]:
    return library_errors(f"model.config: these are no settings of the kind {kind!r}", "Correct the value.")


@functools.lru_cache(4)
def _read(path: Path) -> dict[str, Any]:
    """Read a file once per process, so that it cannot change during a run."""
    file = path / "config.json" if path.is_dir() else path
    try:
        values: dict[str, Any] = read_json(file, dict[str, Any], MAX_CONFIG_BYTES)
    except UserError as error:
        raise UserError(one_line(f"model.config: {error}")) from None
    return values
