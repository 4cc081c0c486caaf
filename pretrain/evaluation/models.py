"""Finished models as predictors: through the native encoder where they have that form, else through transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_prep.errors import UserError
from pretrain.evaluation.streams import Answers, Stream
from pretrain.evaluation.text import SentenceTokenizer, open_tokenizer
from pretrain.model.encoder import Encoder
from pretrain.model.families import from_hugging_face, shape_of
from pretrain.model.padded import longest_text, padded_logits
from pretrain.model_folder import load_language_model, load_tokenizer, model_folder

_LOGIT_BYTES = 1 << 25  # of logits that are there at once


class LogitSource(Protocol):
    """Logits [k, V] of consecutive predictions, a block at a time."""

    def __call__(self, stream: Stream) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class FinishedModel:
    """A predictor (pretrain.evaluation.streams.Predictor) with its tokenizer.

    tokenizer: its own.
    longest: tokens of the longest text that it takes; None where there is no limit.
    logits: how they are computed.
    """

    tokenizer: SentenceTokenizer
    causal: bool
    longest: int | None
    logits: LogitSource

    @torch.no_grad()
    def __call__(self, stream: Stream) -> Answers:
        """In fp32; what surrounds the logits is that of each model, and they are reduced block by block."""
        found, first = [], 0
        for logits_KV in self.logits(stream):
            labels = torch.from_numpy(stream.labels[first : first + len(logits_KV)]).to(logits_KV.device)
            values = logits_KV.float()
            of_label = values.gather(1, labels[:, None])[:, 0] - values.logsumexp(dim=1)
            found.append((of_label.double().cpu().numpy(), (values.argmax(dim=1) == labels).cpu().numpy()))
            first += len(logits_KV)
        log_probabilities, right = zip(*found, strict=True)
        return Answers(np.concatenate(log_probabilities), np.concatenate(right))


def open_model(path: Path) -> FinishedModel:
    """A Hugging Face folder or a run, masked or causal, on the GPU if there is one.

    Raises:
        UserError: if it is neither, or has no language model head or no tokenizer.
    """
    folder = model_folder(path)
    tokenizer = load_tokenizer(folder)
    model, causal = load_language_model(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = _native(model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else model.config.pad_token_id or 0
    logits = EncoderLogits(encoder.to(device)) if encoder else PaddedLogits(model, pad, device)
    return FinishedModel(open_tokenizer(tokenizer, folder, causal), causal, longest_text(model), logits)


def _native(model: PreTrainedModel) -> Encoder | None:
    """The native encoder of a model; None where it computes something else."""
    try:
        shape = shape_of(model.config)
    except UserError:
        return None
    encoder = Encoder(shape)
    encoder.load_state_dict(from_hugging_face(model.state_dict(), shape))
    encoder.neutralize_padding()
    return encoder.eval()


class EncoderLogits:
    """Only the states that predict meet the last MLP and the vocabulary."""

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
    """Any other model: each document is a row, and the vocabulary is met everywhere."""

    def __init__(self, model: PreTrainedModel, pad_id: int, device: torch.device):
        self._model, self._pad_id, self._device = model, pad_id, device
        nn.Module.to(model, device)

    def __call__(self, stream: Stream) -> Iterator[Tensor]:
        tokens, _, cu_seqlens, places = _tensors(stream, self._device)
        yield padded_logits(self._model, self._pad_id, tokens, cu_seqlens, stream.n_documents, places)


def _tensors(stream: Stream, device: torch.device) -> list[Tensor]:
    arrays = (stream.tokens, stream.positions, stream.cu_seqlens, stream.places)
    return [torch.from_numpy(array).to(device) for array in arrays]
