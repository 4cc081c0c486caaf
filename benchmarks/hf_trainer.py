"""Masked language modelling with `transformers.Trainer`, as in run_mlm.py: one side of train_vs_hf and speedrun.

    python -m benchmarks.hf_trainer SETTINGS.json RESULT.json

The text is tokenized with special tokens, concatenated and cut into rows of `seq_len` (run_mlm's group_texts: no
padding), and masked by DataCollatorForLanguageModeling. With "held_out", the result has held-out losses; else the time
at the end of each step.
"""

import json
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

_ROWS = 32  # per batch of an evaluation


class StepEnds(transformers.TrainerCallback):
    """Seconds on a monotonic clock at the end of each optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.monotonic())


class HeldOut:
    """Masked documents of a file: tokens [T], `ends` [D] of documents in them, labels [T], negative if not predicted.

    Each document is one padded row.
    """

    def __init__(self, path: Path, pad: int):
        with np.load(path) as arrays:
            ends = arrays["ends"][:-1]
            self._tokens, self._labels = (np.split(arrays[name], ends) for name in ("tokens", "labels"))
        self._pad = pad

    def loss(self, model: Any, bare: bool, bf16: bool) -> float:
        """Nats per prediction. bare: without the first and last token of each document, which are special."""
        inside = slice(1, -1) if bare else slice(None)
        total, count, training = 0.0, 0, model.training
        model.eval()
        for first in range(0, len(self._tokens), _ROWS):
            part = slice(first, first + _ROWS)
            ids = _padded([tokens[inside] for tokens in self._tokens[part]], self._pad).to(model.device)
            labels = _padded([labels[inside] for labels in self._labels[part]], -1).to(model.device)
            predicted = labels >= 0
            with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                states = model.bert(ids, attention_mask=(ids != self._pad).long()).last_hidden_state
                logits = model.cls(states[predicted]).float()
            total += float(torch.nn.functional.cross_entropy(logits, labels[predicted], reduction="sum"))
            count += int(predicted.sum())
        model.train(training)
        return total / count


def _padded(arrays: list[NDArray[np.int64]], fill: int) -> Tensor:
    width = max(map(len, arrays))
    return torch.tensor(np.stack([np.pad(a, (0, width - len(a)), constant_values=fill) for a in arrays]))


class Curve(transformers.TrainerCallback):
    """Held-out losses by step and by seconds of training, without the time of evaluations.

    The text is read with [CLS] and [SEP] around each document and, as in nearly all rows of run_mlm.py, without them;
    the lower loss counts.
    """

    def __init__(self, held_out: HeldOut, every: int, bf16: bool):
        self.points: list[dict[str, float]] = []
        self._held_out, self._every, self._bf16 = held_out, every, bf16
        self._start = self._evaluating = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._every and state.global_step != state.max_steps:
            return
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.monotonic()
        losses = [self._held_out.loss(kwargs["model"], bare, self._bf16) for bare in (False, True)]
        seconds = now - self._start - self._evaluating
        self.points.append({"step": state.global_step, "seconds": seconds, "loss": min(losses)})
        print(f"step {state.global_step}: {seconds:.0f} s, held-out loss {min(losses):.4f}", flush=True)
        self._evaluating += time.monotonic() - now


def group_texts(examples: dict[str, list[list[int]]], seq_len: int) -> dict[str, list[list[int]]]:
    """run_mlm.py's group_texts: concatenate, cut, and drop the remainder."""
    joined = {name: list(chain(*rows)) for name, rows in examples.items()}
    length = len(joined["input_ids"]) // seq_len * seq_len
    return {name: [ids[i : i + seq_len] for i in range(0, length, seq_len)] for name, ids in joined.items()}


def rows_of(text_file: str, tokenizer: Any, seq_len: int) -> datasets.Dataset:
    text = datasets.load_dataset("json", data_files=text_file, split="train")
    tokenized = text.map(
        lambda batch: tokenizer(batch["text"], return_special_tokens_mask=True, verbose=False),
        batched=True,
        remove_columns=text.column_names,
    )
    return tokenized.map(group_texts, batched=True, fn_kwargs={"seq_len": seq_len})


def main(settings: dict[str, Any]) -> dict[str, Any]:
    datasets.disable_progress_bars()
    transformers.set_seed(settings["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["tokenizer"])
    rows = rows_of(settings["text"], tokenizer, settings["seq_len"])
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **settings["model"]))
    callback: Any = StepEnds()
    if settings["held_out"]:
        held_out = HeldOut(Path(settings["held_out"]), tokenizer.pad_token_id)
        callback = Curve(held_out, settings["every"], settings["bf16"])
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            seed=settings["seed"],
            bf16=settings["bf16"],
            **settings["arguments"],
        ),
        train_dataset=rows,
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings["rate"]),
        callbacks=[callback],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    result = {"threads": torch.get_num_threads()}
    if settings["held_out"]:
        return result | {"points": callback.points}
    special = sum(map(sum, rows["special_tokens_mask"]))  # of all tokens: [CLS] and [SEP]
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    text_share = 1 - special / (len(rows) * settings["seq_len"])
    return result | {"step_ends": callback.seconds, "losses": losses, "text_share": text_share}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
