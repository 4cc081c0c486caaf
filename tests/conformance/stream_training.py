"""Train a small BERT on a MaskedStream in another trainer. python -m tests.conformance.stream_training TRAINER DATA OUT

Appends a digest of each batch to OUT/batches.txt, with its number, and continues from the newest saved state in OUT.
With KILL=N the process kills itself in step N. At the end OUT/losses.json has the loss on a fixed batch.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import TrainerState

from pretrain.data import MaskedStream

STEPS, EVERY = 12, 4


def model() -> BertForMaskedLM:
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # trainers restore random states in part
    return BertForMaskedLM(BertConfig(vocab_size=200, max_position_embeddings=32, **sizes, **still))


class Log:
    """Writes a line for each batch that is trained on."""

    def __init__(self, out: Path):
        self._file = out / "batches.txt"

    def add(self, step: int, batch: dict[str, torch.Tensor]) -> None:
        if step == int(os.environ.get("KILL", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        digest = hashlib.sha256(b"".join(batch[name].numpy().tobytes() for name in sorted(batch))).hexdigest()
        with open(self._file, "a") as file:
            file.write(f"{step} {digest}\n")


def by_transformers(stream: MaskedStream, out: Path, log: Log) -> torch.nn.Module:
    class StreamTrainer(Trainer):
        def get_train_dataloader(self):
            return stream.loader(workers=2)

        def training_step(self, model, inputs, *more):
            log.add(self.state.global_step + 1, inputs)
            return super().training_step(model, inputs, *more)

    newest = max(out.glob("checkpoint-*"), key=lambda path: int(path.name[11:]), default=None)
    if newest:
        stream.seek(TrainerState.load_from_json(newest / "trainer_state.json").global_step)
    options = {"max_steps": STEPS, "save_steps": EVERY, "report_to": "none", "use_cpu": True, "logging_steps": 1}
    arguments = TrainingArguments(out, ignore_data_skip=True, disable_tqdm=True, **options)
    trainer = StreamTrainer(model(), arguments)
    trainer.train(resume_from_checkpoint=newest and str(newest))
    return trainer.model


def by_accelerate(stream: MaskedStream, out: Path, log: Log) -> torch.nn.Module:
    from accelerate import Accelerator

    accelerator, loader = Accelerator(cpu=True), stream.loader(workers=2)
    own = model()
    network, optimizer = accelerator.prepare(own, torch.optim.AdamW(own.parameters()))
    accelerator.register_for_checkpointing(loader)
    if newest := max(out.glob("state-*"), key=lambda path: int(path.name[6:]), default=None):
        accelerator.load_state(newest)
    for batch in loader:
        log.add(stream.batches, batch)
        accelerator.backward(network(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        if stream.batches % EVERY == 0:
            accelerator.save_state(out / f"state-{stream.batches}")
    return own


def by_lightning(stream: MaskedStream, out: Path, log: Log) -> torch.nn.Module:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model()

        def training_step(self, batch, number):
            log.add(stream.batches, batch)
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    Saver = lightning.pytorch.callbacks.ModelCheckpoint
    saver = Saver(out, every_n_train_steps=EVERY, save_top_k=-1, filename="{step}")
    options = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_steps=STEPS, callbacks=[saver], enable_model_summary=False, **options)
    newest = max(out.glob("*.ckpt"), key=lambda path: int(path.stem[5:]), default=None)
    module = Module()
    trainer.fit(module, train_dataloaders=stream.loader(workers=2), ckpt_path=newest and str(newest))
    return module.model


TRAINERS = {"transformers": by_transformers, "accelerate": by_accelerate, "lightning": by_lightning}


def main(trainer: str, data: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    trained = TRAINERS[trainer](MaskedStream(data, 4, 32, steps=STEPS), out, Log(out))
    (batch,) = MaskedStream(data, 4, 32, seed=1, steps=1)
    with torch.no_grad():
        loss = float(trained.eval()(**batch).loss)
    (out / "losses.json").write_text(json.dumps(loss))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
