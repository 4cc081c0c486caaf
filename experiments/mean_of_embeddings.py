"""Classifier of the mean of a text's embeddings, with ModernBERT's head: the simplest model that can be fine-tuned.

It is registered with transformers when this module is imported, so that `evaluation.finetuning` treats its folders as
folders of any other model.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.logging import disable_progress_bar

_SPECIALS = {"pad_token": "[PAD]", "unk_token": "[UNK]"}


class EmbeddingMeanConfig(PreTrainedConfig):
    """Sizes of the model. dropout: of the mean, before the last layer."""

    model_type = "mean-of-embeddings"

    def __init__(self, vocab_size: int = 2, hidden_size: int = 8, dropout: float = 0.0, **options: Any) -> None:
        self.vocab_size, self.hidden_size, self.dropout = vocab_size, hidden_size, dropout
        super().__init__(**options)


class EmbeddingMean(PreTrainedModel):
    """Embeddings [batch, length, hidden] of tokens. base_model_prefix: as its parent names it."""

    config_class = EmbeddingMeanConfig
    base_model_prefix = "embeddings"

    def __init__(self, config: EmbeddingMeanConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.words(input_ids)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words


class EmbeddingMeanForSequenceClassification(PreTrainedModel):
    """Layer norm of each embedding, mean without padding, dense, GELU, layer norm, dropout, classes."""

    config_class = EmbeddingMeanConfig
    base_model_prefix = "embeddings"

    def __init__(self, config: EmbeddingMeanConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.embeddings = EmbeddingMean(config)
        self.norm, self.head_norm = nn.LayerNorm(size, bias=False), nn.LayerNorm(size, bias=False)
        self.dense, self.classifier = nn.Linear(size, size, bias=False), nn.Linear(size, config.num_labels or 2)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        states, weights = self.norm(self.embeddings(input_ids)), attention_mask[..., None].float()
        mean = (states * weights).sum(1) / weights.sum(1)
        head = self.head_norm(F.gelu(self.dense(mean)))
        logits = self.classifier(F.dropout(head, self.config.dropout, self.training))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


AutoConfig.register(EmbeddingMeanConfig.model_type, EmbeddingMeanConfig)
AutoModel.register(EmbeddingMeanConfig, EmbeddingMean)
AutoModelForSequenceClassification.register(EmbeddingMeanConfig, EmbeddingMeanForSequenceClassification)


def save_word_vectors(folder: Path, words: list[str], vectors: Tensor, like: Tokenizer) -> None:
    """Write a folder with vectors [words, hidden] as embeddings, and a tokenizer of whole words.

    Unknown words get the zero vector. like: a tokenizer that normalizes and splits text in the same way.
    """
    disable_progress_bar()
    ids = {name: number for number, name in enumerate([*_SPECIALS.values(), *words])}
    whole = Tokenizer(models.WordLevel(ids, unk_token=_SPECIALS["unk_token"]))
    whole.normalizer, whole.pre_tokenizer = like.normalizer, like.pre_tokenizer
    model = EmbeddingMean(EmbeddingMeanConfig(len(ids), vectors.shape[1], pad_token_id=0))
    with torch.no_grad():
        model.words.weight[: len(_SPECIALS)] = 0
        model.words.weight[len(_SPECIALS) :] = vectors
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=whole, **_SPECIALS).save_pretrained(folder)
