"""Predictors for exported models: the native encoder where the architecture matches, else transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_prep.errors import UserError
from evaluation.likelihood.prediction_streams import Answers, Stream
from evaluation.likelihood.sentence_tokenizer import SentenceTokenizer, open_tokenizer
from pretrain.export import load_language_model, load_tokenizer, model_folder
from pretrain.model import Encoder, longest_text
from pretrain.model.families import from_hugging_face, shape_of
from pretrain.model.padded_model import document_logits

_LOGIT_BYTES = 1 << 25  # of logits in memory at a time
_PADDED_BYTES = 1 << 28  # of the logits of a padded batch, computed at every slot


class LogitSource(Protocol):
    """Yield logits [k, V] of consecutive predictions, block by block."""

    def __call__(self, stream: Stream) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class FinishedModel:
    """A predictor (evaluation.likelihood.prediction_streams.Predictor) with its tokenizer.

    name: for error messages. vocab_size: valid ids are below it.
    longest: maximum length of a text in tokens; None: no limit.
    logits: function that computes the logits.
    """

    name: str
    tokenizer: SentenceTokenizer
    vocab_size: int
    causal: bool
    longest: int | None
    logits: LogitSource

    @torch.no_grad()
    def __call__(self, stream: Stream) -> Answers:
        """Compute log-probabilities in fp32 and reduce the logits block by block.

        Raises:
            UserError: for ids outside the model's vocabulary, or if log-probabilities are not finite.
        """
        self._check_ids(stream)
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

    def _check_ids(self, stream: Stream) -> None:
        largest = max(int(ids.max(initial=0)) for ids in (stream.tokens, stream.labels))
        if largest >= self.vocab_size:
            raise UserError(
                f"{self.name} is asked about an id of {largest}, and knows those below {self.vocab_size}; give it the "
                "tokenizer that it was trained with"
            )


def open_model(path: Path) -> FinishedModel:
    """Open a Hugging Face folder or a run, masked or causal, on the GPU if there is one.

    Raises:
        UserError: if the folder is neither, or has no language model head or no tokenizer.
    """
    folder = model_folder(path)
    tokenizer = load_tokenizer(folder)
    model, causal = load_language_model(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = _native(model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else model.config.pad_token_id or 0
    logits = EncoderLogits(encoder.to(device)) if encoder else PaddedLogits(model, pad, device)
    sentences, size = open_tokenizer(tokenizer, folder, causal), model.config.vocab_size
    return FinishedModel(str(path), sentences, size, causal, longest_text(model), logits)


def _native(model: PreTrainedModel) -> Encoder | None:
    """The native encoder of a model; None for another architecture."""
    try:
        shape = shape_of(model.config)
    except UserError:
        return None
    encoder = Encoder(shape)
    encoder.load_state_dict(from_hugging_face(model.state_dict(), shape))
    encoder.neutralize_padding()
    return encoder.eval()


class EncoderLogits:
    """The MLM head runs only on the states that predict."""

    def __init__(self, encoder: Encoder):
        self._encoder = encoder

    def __call__(self, stream: Stream) -> Iterator[Tensor]:
        encoder, size = self._encoder, self._encoder.shape.vocab_size
        weight, bias = encoder.word_embedding[:size], encoder.decoder_bias[:size]
        tokens, positions, cu_seqlens, places = _tensors(stream, weight.device)
        states = encoder.hidden(tokens, positions, cu_seqlens, stream.seq_len, stream.n_documents, places)
        for part in encoder.transformed(states).split(max(1, _LOGIT_BYTES // (4 * size))):
            yield F.linear(part, weight, bias)


class PaddedLogits:
    """Logits of any other model: documents with predictions become padded rows, as many per batch as fit."""

    def __init__(self, model: PreTrainedModel, pad_id: int, device: torch.device):
        self._model, self._pad_id, self._device = model, pad_id, device
        nn.Module.to(model, device)

    def __call__(self, stream: Stream) -> Iterator[Tensor]:
        tokens, _, cu_seqlens, places = _tensors(stream, self._device)
        bounds = stream.cu_seqlens[: stream.n_documents + 1].astype(np.int64)
        document = np.searchsorted(bounds, stream.places, side="right") - 1
        asked, first = np.unique(document, return_index=True)
        first = np.append(first, len(document))
        slots = _PADDED_BYTES // (4 * self._model.config.vocab_size)
        for start, end in _batches(np.diff(bounds)[asked], slots):
            rows = torch.from_numpy(asked[start:end]).to(self._device)
            here = places[first[start] : first[end]]
            yield document_logits(self._model, self._pad_id, tokens, cu_seqlens[rows], cu_seqlens[rows + 1], here)


def _batches(lengths: NDArray[np.int64], slots: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of consecutive documents that fit into `slots` slots after padding; at least one document."""
    start = 0
    while start < len(lengths):
        taken = np.maximum.accumulate(lengths[start:]) * np.arange(1, len(lengths) - start + 1)
        end = start + max(1, int(np.searchsorted(taken, slots, side="right")))
        yield start, end
        start = end


def _tensors(stream: Stream, device: torch.device) -> list[Tensor]:
    arrays = (stream.tokens, stream.positions, stream.cu_seqlens, stream.places)
    return [torch.from_numpy(array).to(device) for array in arrays]
