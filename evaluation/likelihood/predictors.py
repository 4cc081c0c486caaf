"""Predictors: exported models and the unigram baseline, each with its tokenizer.

An exported model runs as the native encoder where the architecture matches, else by transformers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.data import Batch
from pretrain.export import ids_around, load_language_model, load_tokenizer, model_folder, prediction_lag
from pretrain.masking import IGNORED, Vocabulary
from pretrain.model import Encoder, document_logits, longest_text, native_encoder


@dataclass(frozen=True)
class Stream:
    """Concatenated documents and the tokens to predict in them.

    tokens, positions [N] int64, cu_seqlens [C] int32, seq_len: see pretrain.data.batch.Batch.
    places [K] int64: slots whose states predict. labels [K] int64: the correct ids.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]
    seq_len: int
    places: NDArray[np.int64]
    labels: NDArray[np.int64]

    @classmethod
    def of_batch(cls, batch: Batch) -> "Stream":
        """A stream of a masked batch and its predictions, without those that only fill the batch up."""
        used = batch.labels != IGNORED
        places, labels = batch.masked_positions[used], batch.labels[used]
        return cls(batch.tokens, batch.positions, batch.cu_seqlens, batch.seq_len, places, labels)

    @classmethod
    def of_rows(cls, rows: NDArray[np.int64], places: NDArray[np.int64], labels: NDArray[np.int64]) -> "Stream":
        """A stream of rows [R, S], one document of S tokens each, with K predictions."""
        n_rows, seq_len = rows.shape
        bounds = np.arange(n_rows + 1, dtype=np.int32) * seq_len
        positions = np.tile(np.arange(seq_len), n_rows)
        return cls(rows.reshape(-1), positions, bounds, seq_len, places, labels)


@dataclass(frozen=True)
class Answers:
    """Per prediction [K]: the log-probability of the correct id in nats, and whether it is the most likely id."""

    log_probabilities: NDArray[np.float64]
    right: NDArray[np.bool_]


@dataclass(frozen=True)
class EncodedSentence:
    """ids [L] int64: tokens without specials. first: the number of those at the start that are read, but not scored."""

    ids: NDArray[np.int64]
    first: int = 0


@dataclass(frozen=True)
class SentenceTokenizer:
    """A tokenizer and the special ids of its model.

    first: id before a sentence. last: id after it; None for causal models.
    mask: id of [MASK]; None for causal models.
    """

    backend: Any
    first: int
    last: int | None
    mask: int | None

    def __call__(self, texts: Sequence[str], contexts: Sequence[int] | None = None) -> list[EncodedSentence]:
        """Encode texts.

        Args:
            contexts: characters of each text that are not scored; a token that reaches beyond them is. None: 0.
        """
        sentences, encodings = [], self.backend.encode_batch(list(texts), add_special_tokens=False)
        for encoding, context in zip(encodings, contexts or [0] * len(texts), strict=True):
            before = sum(end <= context for _, end in encoding.offsets) if context else 0
            sentences.append(EncodedSentence(np.array(encoding.ids, dtype=np.int64), before))
        return sentences

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, added tokens included."""
        ids: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return ids


def open_tokenizer(tokenizer: Any, folder: Path, causal: bool) -> SentenceTokenizer:
    """Prepare the transformers tokenizer of a folder for a masked or causal model.

    Special-token strings in a sentence are encoded as plain text, as in data preparation.

    Raises UserError if the tokenizer lacks a required special token.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    ids = ids_around(tokenizer, folder, causal)
    return SentenceTokenizer(backend, ids["cls"], ids.get("sep"), ids.get("mask"))


@dataclass
class FinishedModel:
    """An exported model.

    name: as given by the user. vocab_size: valid ids are below it.
    causal: a state sees its own and earlier tokens, and predicts the next one; otherwise it predicts its own.
    longest: maximum length of a text in tokens; None: no limit.
    lag: slots from a masked model's state that predicts to the token that it predicts.
    logits: yields the logits [k, V] of consecutive predictions of a stream, block by block.
    """

    name: str
    folder: Path
    tokenizer: SentenceTokenizer
    vocab_size: int
    causal: bool
    longest: int | None
    lag: int
    logits: "EncoderLogits | PaddedLogits"

    @torch.no_grad()
    def answers(self, stream: Stream) -> Answers:
        """Compute log-probabilities in fp32 and reduce the logits block by block.

        Raises UserError for ids outside the model's vocabulary, or if log-probabilities are not finite.
        """
        largest = max(int(ids.max(initial=0)) for ids in (stream.tokens, stream.labels))
        if largest >= self.vocab_size:
            raise UserError(
                f"{self.name} is asked about an id of {largest}, and knows those below {self.vocab_size}; give it the "
                "tokenizer that it was trained with"
            )
        stream = replace(stream, places=stream.places - self.lag)
        log_probabilities, right, first = [np.zeros(0)], [np.zeros(0, dtype=np.bool_)], 0
        for logits_KV in self.logits(stream):
            labels = torch.from_numpy(stream.labels[first : first + len(logits_KV)]).to(logits_KV.device)
            values = logits_KV.float()
            of_label = values.gather(1, labels[:, None])[:, 0] - values.logsumexp(dim=1)
            if not of_label.isfinite().all():
                raise UserError(
                    f"{self.name} gives log-probabilities that are not finite; it is damaged, or its training diverged"
                )
            log_probabilities.append(of_label.double().cpu().numpy())
            right.append((values.argmax(dim=1) == labels).cpu().numpy())
            first += len(logits_KV)
        return Answers(np.concatenate(log_probabilities), np.concatenate(right))


def open_model(path: Path) -> FinishedModel:
    """Open a Hugging Face folder or a run, masked or causal, on the GPU if there is one.

    Raises UserError if the folder is neither, or has no language model head or no tokenizer.
    """
    folder = model_folder(path)
    tokenizer = load_tokenizer(folder)
    model, causal = load_language_model(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = native_encoder(model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else model.config.pad_token_id or 0
    nn.Module.to(encoder or model, device)
    logits = EncoderLogits(encoder) if encoder else PaddedLogits(model, pad)
    sentences, size = open_tokenizer(tokenizer, folder, causal), model.config.vocab_size
    lag = prediction_lag(model)
    return FinishedModel(str(path), folder, sentences, size, causal, longest_text(model), lag, logits)


@dataclass
class EncoderLogits:
    """The MLM head runs only on the states that predict. max_bytes: of logits in memory at a time."""

    encoder: Encoder
    max_bytes: int = 1 << 25

    def __call__(self, stream: Stream) -> Iterator[Tensor]:
        encoder, size = self.encoder, self.encoder.shape.vocab_size
        weight, bias = encoder.decoder_weight[:size], encoder.decoder_bias[:size]
        tokens, positions, cu_seqlens, places = _tensors(stream, weight.device)
        states = encoder.hidden(tokens, positions, cu_seqlens, stream.seq_len, places)
        for part in encoder.transformed(states).split(max(1, self.max_bytes // (4 * size))):
            yield F.linear(part, weight, bias)


@dataclass
class PaddedLogits:
    """Logits of any other model: documents with predictions become padded rows, as many per batch as fit.

    max_bytes: of the logits of a batch, computed at every slot. A batch has at least one document.
    """

    model: PreTrainedModel
    pad_id: int
    max_bytes: int = 1 << 28

    def __call__(self, stream: Stream) -> Iterator[Tensor]:
        tokens, _, cu_seqlens, places = _tensors(stream, self.model.device)
        bounds = stream.cu_seqlens.astype(np.int64)
        document = np.searchsorted(bounds, stream.places, side="right") - 1
        asked, first = np.unique(document, return_index=True)
        first = np.append(first, len(document))
        slots = self.max_bytes // (4 * self.model.config.vocab_size)
        size = max(1, slots // int(np.diff(bounds)[asked].max(initial=1)))
        for start in range(0, len(asked), size):
            rows = torch.from_numpy(asked[start : start + size]).to(tokens.device)
            here = places[first[start] : first[min(start + size, len(asked))]]
            yield document_logits(self.model, self.pad_id, tokens, cu_seqlens[rows], cu_seqlens[rows + 1], here)


def _tensors(stream: Stream, device: torch.device) -> list[Tensor]:
    arrays = (stream.tokens, stream.positions, stream.cu_seqlens, stream.places)
    return [torch.from_numpy(array).to(device) for array in arrays]


class Unigram:
    """A predictor from token counts: (count + 1) / (tokens + ordinary ids).

    Args:
        counts: [vocab_size] of `dataset` or another data set; counts of special tokens are ignored.

    Attributes:
        log_probabilities: float64 [vocab_size].
    """

    name = "unigram"
    folder: Path | None = None
    longest: int | None = None
    causal = True  # it reads no context, so nothing needs a mask

    def __init__(self, dataset: Dataset, counts: NDArray[np.int64]):
        dataset.check_tokenizer()
        folder = dataset.tokenizer_path
        self.tokenizer = open_tokenizer(load_tokenizer(folder), folder, causal=True)
        ordinary = Vocabulary.of(dataset.manifest.tokenizer).is_ordinary
        smoothed = np.where(ordinary, counts + 1.0, 1.0)  # [UNK] counts as a token that never occurs
        self.log_probabilities = np.log(smoothed) - np.log(smoothed[ordinary].sum())
        self._likeliest = int(np.argmax(np.where(ordinary, counts, -1)))

    def answers(self, stream: Stream) -> Answers:
        return Answers(self.log_probabilities[stream.labels], stream.labels == self._likeliest)


Predictor = FinishedModel | Unigram
"""A model that computes the probabilities of tokens."""
