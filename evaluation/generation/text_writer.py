"""Generate texts from a model and a prompt, or fill its masks (`maskwright generate`, `maskwright fill`)."""

import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from data_prep.common.errors import UserError
from evaluation.generation.decoding import Draws, fill_masks, left_to_right
from pretrain.export import ids_around, load_language_model, load_tokenizer, prediction_lag
from pretrain.model import longest_text, native_encoder

SamplerName = Literal["mask-predict", "diffusion"]

MASK = "[MASK]"  # for every tokenizer
_MOST_CHARACTERS = 1 << 16  # of a prompt: more than the longest models read
LENGTH = 16  # default number of tokens to write
ITERATIONS = 10  # of mask-predict, at most the number of tokens to write


@dataclass(frozen=True)
class GenerationRequest:
    """Prompt and sampling options of a generation.

    prompt: MASK, or the tokenizer's mask token, marks each token to write.
    length: tokens to write after a prompt without masks; the most for a translation. sampler, iterations: only for
    masked models; by default diffusion writes one token an iteration. temperature, seed: see Draws.
    samples: number of texts.
    """

    prompt: str = ""
    length: int | None = None
    sampler: SamplerName | None = None
    iterations: int | None = None
    temperature: float = 1.0
    seed: int = 0
    samples: int = 1


def require_masks(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError for a text without a mask."""
    for text in texts:
        if MASK not in text and (tokenizer.mask_token or MASK) not in text:
            raise UserError(f"No {MASK} in {text!r}. Write {MASK} where a word is missing.")


class Writer:
    """Generates texts with the model and tokenizer of a folder.

    Args:
        max_logits: elements of the logits of one pass; a batch has at least one sample.

    Attributes:
        outside: special ids around a text, not part of it.

    Raises UserError if the folder holds no language model, or its tokenizer lacks a required token.
    """

    def __init__(self, folder: Path, max_logits: int = 1 << 25):
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(folder)
        self._model, self.causal = load_language_model(folder)
        self._translator = native_encoder(self._model) if hasattr(self._model.config, "prefix_sep_token_id") else None
        self._forward = "causal" if self.causal else "translation" if self._translator else ""
        self._name, self._longest, self._max_logits = folder, longest_text(self._model), max_logits
        self._ids = ids_around(self.tokenizer, folder, self.causal)
        self.outside = frozenset(id for name, id in self._ids.items() if name != "mask")

    def write(self, request: GenerationRequest) -> Iterator[tuple[list[int], list[bool]]]:
        """Yield for each sample its ids, specials included, and which of them were written.

        Raises UserError if the request does not fit the model.
        """
        start, allowed, length = self._start(request), self._allowed(), request.length or LENGTH
        end = self._ids["sep"] if self._translator else None
        if self._forward:
            new = torch.arange(start.shape[1] + length) >= start.shape[1]
        else:
            new = torch.eq(start[0], self._ids["mask"])
        batch = max(1, self._max_logits // (len(new) * len(allowed)))
        for first in range(0, request.samples, batch):
            samples = start.expand(min(batch, request.samples - first), -1)
            draws = Draws(allowed, request.temperature, request.seed, first)
            if self._forward:
                steps = left_to_right(self._predict, samples, length, draws, end)
            else:
                again, most = request.sampler != "diffusion", int(new.sum())
                iterations = request.iterations or (min(ITERATIONS, most) if again else most)
                steps = fill_masks(self._predict, samples, self._ids["mask"], iterations, draws, again)
            *_, texts = steps
            for ids in texts.tolist():
                size = ids.index(end, start.shape[1]) if end in ids[start.shape[1] :] else len(ids)
                yield ids[:size], new.tolist()[:size]

    @torch.inference_mode()
    def fill(self, text: str, top_k: int = 5) -> list[list[tuple[int, float]]]:
        """The most likely ids of each mask of a text, with probabilities among all tokens that are not special.

        Raises UserError if the model is causal.
        """
        if self._forward:
            raise UserError(f"{self._name} is a {self._forward} model, which fills no masks. Use maskwright generate.")
        ids = self._start(GenerationRequest(text))
        allowed = self._allowed()
        logits = self._predict(ids)[0, ids[0] == self._ids["mask"]].float().masked_fill(~allowed, -torch.inf)
        best = logits.softmax(dim=-1).topk(min(top_k, int(allowed.sum())))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [list(zip(tokens, shares, strict=True)) for tokens, shares in pairs]

    @torch.inference_mode()
    def _predict(self, ids: Tensor) -> Tensor:
        if self._translator:  # no class of transformers has prefix attention
            bounds = torch.arange(len(ids) + 1) * ids.shape[1]
            positions = torch.arange(ids.shape[1]).repeat(len(ids))
            states = self._translator.hidden(ids.flatten(), positions, bounds.int(), ids.shape[1], bounds[1:] - 1)
            return self._translator.logits(states)[:, None, : self._translator.shape.vocab_size]
        logits: Tensor = self._model(input_ids=ids, attention_mask=torch.ones_like(ids), **self._last_only).logits
        return logits.roll(prediction_lag(self._model), dims=1)

    @functools.cached_property
    def _last_only(self) -> dict[str, int]:
        """Argument that limits a causal model to the logits of the next token."""
        takes = inspect.signature(self._model.forward).parameters
        return {"logits_to_keep": 1} if self.causal and "logits_to_keep" in takes else {}

    def _start(self, request: GenerationRequest) -> Tensor:
        """The initial text, int64 [1, S]."""
        if len(request.prompt) > _MOST_CHARACTERS:
            raise UserError(f"The text has {len(request.prompt):,} characters; at most {_MOST_CHARACTERS:,} are read.")
        prompt = request.prompt.replace(MASK, self.tokenizer.mask_token or MASK)
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        masks = ids.count(self.tokenizer.mask_token_id)
        if kind := self._forward:
            if request.sampler or request.iterations:
                raise UserError(
                    f"{self._name} is a {kind} model: it writes from left to right. Remove --sampler and --iterations."
                )
            if masks:
                raise UserError(
                    f"{self._name} is a {kind} model, which fills no masks; end the prompt where the text should "
                    "continue"
                )
            start = [self._ids["cls"], *ids, *([self._ids["sep"]] if self._translator else [])]
            total = len(start) + (request.length or LENGTH)
        else:
            if masks and request.length is not None:
                raise UserError(f"The prompt has {masks} masks, which say how many tokens to write. Remove --length.")
            free = [] if masks else [self._ids["mask"]] * (request.length or LENGTH)
            start = [self._ids["cls"], *ids, *free, self._ids["sep"]]
            total = len(start)
        if max(start) >= self._model.config.vocab_size:
            raise UserError(
                f"{self._name}: its tokenizer gives the prompt an id of {max(start)}, and its model knows those below "
                f"{self._model.config.vocab_size}; copy the tokenizer that the model was trained with"
            )
        if self._longest and total > self._longest:
            raise UserError(f"the text would have {total} tokens, and {self._name} takes {self._longest} at most")
        return torch.tensor([start])

    def _allowed(self) -> Tensor:
        """Ids that may be written, bool [V]: all tokens except the special ones."""
        size = self._model.config.vocab_size
        allowed = torch.zeros(size, dtype=torch.bool)
        allowed[[id for id in self.tokenizer.get_vocab().values() if id < size]] = True
        allowed[[id for id in self.tokenizer.all_special_ids if id < size]] = False
        if self._translator:
            allowed[self._ids["sep"]] = True  # ends the text
        return allowed
