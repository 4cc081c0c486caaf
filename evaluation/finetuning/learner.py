"""Train a transformers model with a task head, and predict with it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from data_prep.common.errors import UserError, library_errors
from evaluation.finetuning.feature_batches import Feature, by_length, collate, shuffled
from pretrain.config import ScheduleConfig
from pretrain.export import load_model, model_config
from pretrain.optim import lr_factor
from pretrain.philox import derive_key

Read = Callable[[Any], Tensor]

_WARMUP = 0.1  # share of the steps
_WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of a fine-tuning that affect its result, except the model and the data.

    batch_size: in examples; for questions, in windows.
    max_length: in tokens, specials included. Longer texts are truncated; questions use windows.
    dropout: of the encoder and the head; None: as in the model's config.
    init: "random" trains the same architecture from random weights.
    limit, limit_valid: number of evenly spaced examples to use of each file; None: all.
    """

    task: str
    epochs: int = 3
    lr: float = 5e-5
    batch_size: int = 32
    max_length: int = 128
    dropout: float | None = None
    init: Literal["pretrained", "random"] = "pretrained"
    columns: tuple[str, ...] = ()
    limit: int | None = None
    limit_valid: int | None = None


@dataclass(frozen=True)
class Head:
    """Specification of one model of a task.

    name: "" if the task has only one model. features: training examples.
    auto_class: a transformers class such as AutoModelForSequenceClassification.
    options: entries of the model config, such as `num_labels`.
    """

    name: str
    auto_class: Any
    features: list[Feature]
    options: dict[str, Any] = field(default_factory=dict)


class Learner:
    """A head's model in training, in fp32 on a CPU and in bf16 autocast on a GPU.

    The same arguments give the same weights, bit for bit on a CPU.

    Args:
        folder: of a Hugging Face model.
        pad_id: token that pads batches.
        seed: keys the initial weights of the head (of the whole model for init "random"), the order and the dropout.

    Attributes:
        clip: maximum gradient norm.

    Raises UserError as initial_model, or if a feature has an id outside the model's vocabulary.
    """

    clip = 1.0

    def __init__(self, folder: Path, head: Head, settings: FinetuneSettings, pad_id: int, seed: int) -> None:
        self._settings, self._seed, self._pad_id = settings, seed, pad_id
        self._features, self._name = head.features, head.name
        self.steps = -(-len(head.features) // settings.batch_size)  # of an epoch
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._seed_torch("init", 0)
        self.model: Any = initial_model(folder, head, settings, pad_id).to(self._device)
        self._folder, self._ids = folder, self.model.get_input_embeddings().num_embeddings
        self._check_ids(head.features)
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.lr, fused=True)
        total = settings.epochs * self.steps
        schedule = ScheduleConfig(kind="linear", warmup_steps=math.ceil(_WARMUP * total))
        self._rate = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: lr_factor(schedule, step, total))

    def epoch(self, number: int, on_step: Callable[[], None] = lambda: None) -> float:
        """Train epoch `number` (from 0) and return the mean loss of its steps in nats.

        Raises UserError if the loss is not finite.
        """
        self._seed_torch("dropout", number)
        self.model.train()
        losses = torch.zeros((), device=self._device)
        lengths = [len(feature) for feature in self._features]
        for batch in shuffled(lengths, self._settings.batch_size, self._seed, number):
            inputs, targets = collate([self._features[n] for n in batch], self._pad_id, self._device)
            with self._autocast():
                loss = self.model(**inputs, **targets).loss
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self._optimizer.step()
            self._rate.step()
            losses += loss.detach()
            on_step()
        mean = losses.item() / self.steps
        if not math.isfinite(mean):
            raise UserError(f"seed {self._seed}, epoch {number + 1}: the loss is not finite; try a lower --lr")
        return mean

    @torch.inference_mode()
    def predict(self, features: list[Feature], read: Read) -> list[np.ndarray]:
        """Apply `read` to the model's outputs [batch, ...]; return one array per feature, without padding.

        Raises UserError if a feature has an id outside the model's vocabulary.
        """
        self._check_ids(features)
        self.model.eval()
        found: list[np.ndarray] = [np.empty(0)] * len(features)
        for batch in by_length([len(feature) for feature in features], 2 * self._settings.batch_size):
            inputs, _ = collate([features[n] for n in batch], self._pad_id, self._device)
            with self._autocast():
                values = read(self.model(**inputs)).cpu().numpy()
            for n, value in zip(batch, values, strict=True):
                found[n] = value[: len(features[n])] if value.ndim else value
        return found

    def _check_ids(self, features: list[Feature]) -> None:
        largest = max([self._pad_id, *(max(feature.inputs["input_ids"], default=0) for feature in features)])
        if largest >= self._ids:
            raise UserError(
                f"{self._folder}: its tokenizer has an id of {largest}, and its model knows those below {self._ids}; "
                "give it the tokenizer that it was trained with, or a model with embeddings for all tokens"
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")

    def _seed_torch(self, purpose: str, number: int) -> None:
        high, low = derive_key(self._seed, f"finetune-{self._name}-{purpose}-{number}")
        torch.manual_seed(high << 32 | low)


def initial_model(folder: Path, head: Head, settings: FinetuneSettings, pad_id: int) -> Any:
    """Load a head's model in fp32. Head weights that the folder lacks are drawn from torch's generator.

    Causal models get bidirectional attention if their architecture supports it. A config without a pad token gets
    `pad_id`.

    Raises UserError if transformers has no such head for the model, the model has no dropout but the settings set one,
    or the folder lacks encoder weights.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # hides the warning about new head weights
    problem = f"{folder}: no model for {head.auto_class.__name__} can be made of its config"
    try:
        with library_errors(problem, "Export or copy it again."):
            config = model_config(folder)
            options = head.options | ({"is_decoder": False} if getattr(config, "is_decoder", False) else {})
            if getattr(config, "pad_token_id", None) is None:
                options["pad_token_id"] = pad_id
            if settings.dropout is not None:
                rates = {name: value for name, value in config.to_dict().items() if not isinstance(value, bool)}
                names = [name for name in rates if "dropout" in name or name.endswith("_pdrop")]
                if not names:
                    raise UserError(f"--dropout: a {config.model_type} model has no dropout")
                options |= dict.fromkeys(names, settings.dropout)
            if settings.init == "pretrained":
                return load_model(folder, head.auto_class, new_head=True, **options)
            return head.auto_class.from_config(model_config(folder, **options)).float()
    finally:
        logging.set_verbosity(verbosity)
