"""The usual way of masked language modelling, `transformers.Trainer`: one side of speedrun.py.

    python benchmarks/speedrun_hf.py SETTINGS.json RESULT.json

As hf_mlm.py, whose rows it takes, with a held-out loss after some steps. The held-out text and masks are those of
Maskwright: each document is a row of its own, with padding. They are read twice, with [CLS] and [SEP] around each and,
as nearly all rows of run_mlm.py are, without; the lower loss counts.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.hf_mlm import rows_of

_ROWS = 32  # of a batch of the evaluation


class HeldOut:
    """Masked documents of a file: tokens [T], `ends` [D] of documents in them, labels [T], negative where none is."""

    def __init__(self, path: Path, pad: int):
        with np.load(path) as arrays:
            ends = arrays["ends"][:-1]
            self._tokens, self._labels = (np.split(arrays[name], ends) for name in ("tokens", "labels"))
        self._pad = pad

    def loss(self, model: Any, bare: bool, bf16: bool) -> float:
        """Nats a prediction. bare: without the first and the last token of each document, which are special."""
        inside = slice(1, -1) if bare else slice(None)
        total, count, training = 0.0, 0, model.training
        model.eval()
        for first in range(0, len(self._tokens), _ROWS):
            part = slice(first, first + _ROWS)
            ids = _padded([tokens[inside] for tokens in self._tokens[part]], self._pad).to(model.device)
            labels = _padded([labels[inside] for labels in self._labels[part]], -1).to(model.device)
            asked = labels >= 0
            with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                states = model.bert(ids, attention_mask=(ids != self._pad).long()).last_hidden_state
                logits = model.cls(states[asked]).float()
            total += float(torch.nn.functional.cross_entropy(logits, labels[asked], reduction="sum"))
            count += int(asked.sum())
        model.train(training)
        return total / count


def _padded(arrays: list[NDArray[np.int64]], fill: int) -> Tensor:
    width = max(map(len, arrays))
    return torch.tensor(np.stack([np.pad(a, (0, width - len(a)), constant_values=fill) for a in arrays]))


class Curve(transformers.TrainerCallback):
    """Held-out losses by step and by the seconds of training before it, which evaluation does not count into."""

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


def main(settings: dict[str, Any]) -> dict[str, Any]:
    transformers.set_seed(settings["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["tokenizer"])
    rows = rows_of(settings["text"], tokenizer, settings["seq_len"])
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **settings["model"]))
    curve = Curve(HeldOut(Path(settings["held_out"]), tokenizer.pad_token_id), settings["every"], settings["bf16"])
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=50,
            bf16=settings["bf16"],
            seed=settings["seed"],
            **settings["arguments"],
        ),
        train_dataset=rows,
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings["rate"]),
        callbacks=[curve],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return {"points": curve.points, "threads": torch.get_num_threads(), "rows": len(rows)}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
