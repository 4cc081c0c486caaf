"""Train the model of a head with transformers.Trainer, and predict with it after each epoch."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from data_prep.common.errors import UserError, library_errors
from evaluation.finetuning.heads import IGNORED, Example, FinetuneSettings, Head, HeadOutputs
from pretrain.export import load_model, model_config

_WARMUP = 10  # a tenth of the steps
_WEIGHT_DECAY = 0.01

OnStep = Callable[[str], None]
"""Called after each step, and before each prediction, with the part of the training that runs."""


class Diverged(UserError):
    """The loss or a prediction is not finite."""


@dataclass
class TrainedHead:
    """A trained model, and for each epoch its mean loss (nats), held-out outputs, and end (Unix seconds)."""

    model: Any
    losses: list[float] = field(default_factory=list)
    outputs: list[HeadOutputs] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


def train_head(
    folder: Path,
    head: Head,
    settings: FinetuneSettings,
    tokenizer: Any,
    seed: int,
    before: Sequence[TrainedHead] = (),
    on_step: OnStep = lambda _: None,
) -> TrainedHead:
    """Train a head's model, in fp32 on a CPU and in bf16 autocast on a GPU.

    The same arguments give the same weights, bit for bit on a CPU.

    Args:
        folder: of a Hugging Face model.
        seed: of the initial weights of the head (of the whole model for init "random"), the order and the dropout.
        before: the heads whose outputs `head.held_out` takes.

    Raises UserError as initial_model, if an example has an id outside the model's vocabulary, or if the loss or a
    prediction is not finite.
    """

    def read(logits: Any, labels: torch.Tensor) -> torch.Tensor:
        logits = logits[0] if type(logits) is tuple else logits
        if not logits[labels != IGNORED].isfinite().all():  # the losses are of the weights before the last step
            raise Diverged(f"{line}: the predictions are not finite; try a lower learning rate")
        return head.read(logits)

    set_seed(seed)
    line = ", ".join(filter(None, (f"seed {seed}", head.name)))
    trained = TrainedHead(initial_model(folder, head, settings, tokenizer.pad_token_id))
    check_ids(folder, trained.model, head.examples, tokenizer.pad_token_id)
    with TemporaryDirectory(prefix="maskwright-finetune-") as scratch:
        trainer = _HeadTrainer(
            trained.model,
            _arguments(scratch, settings, len(head.examples), seed),
            _collator(tokenizer, head.examples[0]),
            head.examples,
            preprocess_logits_for_metrics=read,
        )

        def predict() -> HeadOutputs:
            examples = head.held_out([other.outputs[len(trained.outputs)] for other in before])
            check_ids(folder, trained.model, examples, tokenizer.pad_token_id)
            return trainer.outputs(examples)

        trainer.remove_callback(PrinterCallback)  # it prints on stdout
        trainer.add_callback(_EpochRecord(trained, predict, line, on_step))
        trainer.train()
    return trained


def _arguments(scratch: str, settings: FinetuneSettings, examples: int, seed: int) -> TrainingArguments:
    has_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=scratch,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=2 * settings.batch_size,
        learning_rate=settings.lr,
        weight_decay=_WEIGHT_DECAY,
        warmup_steps=settings.epochs * head_steps(examples, settings) // _WARMUP,
        seed=seed,
        bf16=has_gpu and torch.cuda.is_bf16_supported(),
        use_cpu=not has_gpu,
        dataloader_pin_memory=has_gpu,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        logging_strategy="epoch",
        logging_nan_inf_filter=False,  # a loss that is not finite must be seen
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # a Trainer spreads each batch over all GPUs of a machine
    return arguments


def head_steps(examples: int, settings: FinetuneSettings) -> int:
    """Steps of an epoch."""
    return -(-examples // settings.batch_size)


def _collator(tokenizer: Any, example: Example) -> DataCollatorWithPadding | DataCollatorForTokenClassification:
    """Pads on the right, with a mask of attention. Some tokenizers pad on the left, or have no such mask."""
    tokenizer.padding_side = "right"
    tokenizer.model_input_names = [*dict.fromkeys([*tokenizer.model_input_names, "attention_mask"])]
    by_token = isinstance(example.get("labels"), list)
    return (DataCollatorForTokenClassification if by_token else DataCollatorWithPadding)(tokenizer)


class _HeadTrainer(Trainer):
    """A Trainer that predicts examples in their order: only batches of the training are grouped by length."""

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        loader = DataLoader(test_dataset, self.args.eval_batch_size, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    def outputs(self, examples: list[Example]) -> HeadOutputs:
        """The outputs of the head for each example, without padding."""
        lengths = np.array([len(example["input_ids"]) for example in examples])
        order = np.argsort(lengths, kind="stable")
        sorted_by_length: Any = [examples[number] for number in order]
        values = self.predict(sorted_by_length).predictions
        in_order = [values[place] for place in np.argsort(order)]
        return [value[:length] if value.ndim else value for value, length in zip(in_order, lengths, strict=True)]


class _EpochRecord(TrainerCallback):
    """Fills in what a TrainedHead has of each epoch. line: names the training in the progress line."""

    def __init__(self, trained: TrainedHead, predict: Callable[[], HeadOutputs], line: str, on_step: OnStep) -> None:
        self._trained, self._predict, self._line, self._on_step = trained, predict, line, on_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._on_step(f"{self._line}, epoch {math.ceil(state.epoch)} of {state.num_train_epochs}")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trained.outputs.append(self._predict())

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if (loss := more["logs"].get("loss")) is None:  # the summary of the training
            return
        if not math.isfinite(loss):
            raise Diverged(
                f"{self._line}, epoch {round(state.epoch)}: the loss is not finite; try a lower learning rate"
            )
        self._trained.losses.append(loss)
        self._trained.times.append(time.time())


def check_ids(folder: Path, model: Any, examples: Sequence[Example], pad_id: int) -> None:
    """Raise UserError if an id is outside the model's vocabulary."""
    largest = max([pad_id, *(max(example["input_ids"], default=0) for example in examples)])
    known = model.get_input_embeddings().num_embeddings
    if largest >= known:
        raise UserError(
            f"{folder}: its tokenizer has an id of {largest}, and its model knows those below {known}; "
            "give it the tokenizer that it was trained with, or a model with embeddings for all tokens"
        )


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
                    raise UserError(f"dropout is set, but a {config.model_type} model has none; leave it out")
                options |= dict.fromkeys(names, settings.dropout)
            if settings.init == "pretrained":
                return load_model(folder, head.auto_class, new_head=True, **options)
            return head.auto_class.from_config(model_config(folder, **options)).float()
    finally:
        logging.set_verbosity(verbosity)
