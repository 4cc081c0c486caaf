"""Masked language modelling with `transformers.Trainer`, as in run_mlm.py: one side of train_vs_hf and speedrun.

    python -m benchmarks.hf_trainer SETTINGS.json RESULT.json

The text is tokenized with special tokens, concatenated and cut into rows of `seq_len` (run_mlm's group_texts: no
padding), and masked by DataCollatorForLanguageModeling. The result has the time at the end of each step, or with
"save_at" the models after these steps.
"""

import json
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers


class StepEnds(transformers.TrainerCallback):
    """Seconds on a monotonic clock at the end of each optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.monotonic())


class Saves(transformers.TrainerCallback):
    """Saves the model after some steps, with the seconds of training until then; the time of saving does not count."""

    def __init__(self, steps: list[int], folder: Path):
        self.points: list[dict[str, Any]] = []
        self._steps, self._folder = steps, folder
        self._start = self._saving = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step not in self._steps:
            return
        now, folder = time.monotonic(), self._folder / f"step-{state.global_step}"
        kwargs["model"].save_pretrained(folder)
        seconds = now - self._start - self._saving
        self.points.append({"step": state.global_step, "seconds": seconds, "model": str(folder)})
        self._saving += time.monotonic() - now


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
    sizes = {"vocab_size": len(tokenizer)} | settings["model"]
    model = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.for_model(**sizes))
    callback: Any = StepEnds()
    if settings["save_at"]:
        callback = Saves(settings["save_at"], Path(settings["arguments"]["output_dir"]))
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
    if settings["save_at"]:
        return result | {"points": callback.points}
    special = sum(map(sum, rows["special_tokens_mask"]))  # of all tokens: [CLS] and [SEP]
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    text_share = 1 - special / (len(rows) * settings["seq_len"])
    return result | {"step_ends": callback.seconds, "losses": losses, "text_share": text_share}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
