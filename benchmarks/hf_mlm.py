"""Masked language modelling with `transformers.Trainer`, as its example run_mlm.py does it: one side of train_vs_hf.py.

    python benchmarks/hf_mlm.py SETTINGS.json RESULT.json

The text is tokenized with special tokens, concatenated and cut into rows of `seq_len` (run_mlm's group_texts: no
padding), masked by DataCollatorForLanguageModeling. RESULT gets, per step, the time at its end and the loss.
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


def group_texts(examples: dict[str, list[list[int]]], seq_len: int) -> dict[str, list[list[int]]]:
    """run_mlm.py's group_texts: concatenate, drop the remainder, cut."""
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


def text_share(rows: datasets.Dataset, seq_len: int) -> float:
    """Share of the tokens that are not [CLS] or [SEP]."""
    return 1 - sum(map(sum, rows["special_tokens_mask"])) / (len(rows) * seq_len)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    datasets.disable_progress_bars()
    transformers.set_seed(settings["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["tokenizer"])
    rows = rows_of(settings["text"], tokenizer, settings["seq_len"])
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **settings["model"]))
    step_ends = StepEnds()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=settings["output_dir"],
            use_cpu=True,
            max_steps=settings["steps"],
            per_device_train_batch_size=settings["batch_size"],
            optim="adamw_torch_fused",
            learning_rate=settings["lr"],
            adam_beta1=settings["betas"][0],
            adam_beta2=settings["betas"][1],
            adam_epsilon=settings["eps"],
            weight_decay=settings["weight_decay"],
            max_grad_norm=settings["grad_clip"],
            lr_scheduler_type="linear",
            warmup_steps=settings["warmup_steps"],
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=settings["seed"],
        ),
        train_dataset=rows,
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings["rate"]),
        callbacks=[step_ends],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    return {
        "step_ends": step_ends.seconds,
        "losses": losses,
        "threads": torch.get_num_threads(),
        "text_share": text_share(rows, settings["seq_len"]),
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
