"""The sides that benchmarks/step.py compares; each runs in its own process.

Both train the same model from the same weights on the same data set, with torch's fused AdamW and gradient clipping:
Maskwright with its loader, transformers with its collator and one padded document per row.
"""

import gc
import os
import socket
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoTokenizer, DataCollatorForLanguageModeling
from transformers.trainer_pt_utils import get_length_grouped_indices

from benchmarks.harness import memory
from benchmarks.step_parts import parts_of
from benchmarks.step_work import SEED, Batch, Round, Side, Weights, Work
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.data import BatchStage, DeviceBatch, DeviceFeed, Loader, LoaderStep, Prefetcher, Sources
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.kernels import operations
from pretrain.masking import IGNORED, Vocabulary
from pretrain.model import Encoder, EncoderCosts
from pretrain.model.families import hugging_face_model
from pretrain.optim.parameter_groups import described, parameter_groups

MEGABATCH = 50  # batches that transformers sorts together by length
_PEAK = Path("/proc/self/clear_refs")  # "5" resets the process's peak memory


class Maskwright:
    """The loader in a thread as in a run, the native encoder, and a plain step without DeepSpeed."""

    def __init__(self, work: Work):
        self.work, self.device = work, torch.device(work.device)
        self.model = Encoder(work.shape, operations=operations(work.setting.fused))
        self.model.initialize(SEED)
        if work.setting.compiled:
            self.model.compile_graph(shapes=1)
        self._prepare()

    def _prepare(self) -> None:
        work = self.work
        self.model.to(self.device, torch.bfloat16 if work.half else torch.float32)
        self.weights = Weights(parameter_groups(described(self.model), work.config.optim), work.config)

    def batches(self) -> Iterator[Batch]:
        """From the loader of a run."""
        return loaded(self.work)

    def step(self, batch: Batch) -> Tensor:
        total = torch.zeros((), device=self.device)
        for part in batch.inputs:
            loss = self._loss(part.wait())
            (loss / batch.predictions).backward()
            total += loss.detach()
        self.weights.step(self.work.config.optim.lr)
        return total

    def _loss(self, part: DeviceBatch) -> Tensor:
        loss: Tensor = self.model(**part.inputs).loss
        return loss


def loaded(work: Work) -> Iterator[Batch]:
    """Batches on the device, from the loader of a run in its thread."""
    config, sources = work.config, Sources.open(work.config)
    loader = Loader.for_training(config, sources, BatchStage.of_run(config, 1), 0)
    feed = DeviceFeed(torch.device(work.device))
    pad = Vocabulary.of(sources.tokenizer).pad

    def prepare(step: LoaderStep) -> Batch:
        lengths = np.concatenate([batch.document_lengths(pad) for batch in step.batches])
        predictions = sum(int((batch.labels >= 0).sum()) for batch in step.batches)
        slots = sum(len(batch.tokens) for batch in step.batches)
        return Batch([feed(batch) for batch in step.batches], predictions, lengths, slots)

    prefetcher = Prefetcher(loader, 0, loader.mixture.start(), prepare)
    try:
        while True:
            yield prefetcher.next()
    finally:
        prefetcher.close()


class Engined(Maskwright):
    """The same with Maskwright's engine (DeepSpeed), in a process group of one."""

    def _prepare(self) -> None:
        from pretrain.engine import Engine, init_distributed

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(free.getsockname()[1])
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        init_distributed(self.work.setting.deterministic)
        self.engine = Engine(self.work.config, self.model)

    def step(self, batch: Batch) -> Tensor:
        predictions = self.engine.total([batch.predictions])[0]
        parts = [part.wait() for part in batch.inputs]
        return self.engine.step(parts, predictions, self.work.config.optim.lr)[0].float()


class Transformers:
    """Its model and collator, without dropout; ModernBERT's head computes only predicted tokens."""

    def __init__(self, work: Work):
        self.work, self.device = work, torch.device(work.device)
        # A vocabulary of a multiple of 64 is faster.
        shape = replace(work.shape, vocab_size=work.shape.padded_vocab_size)
        encoder = Encoder(shape)
        encoder.initialize(SEED)
        self.model = hugging_face_model(encoder.state_dict(), shape).train()
        self.model.set_attn_implementation(work.setting.attention)
        if shape.arch == "modernbert":
            self.model.sparse_prediction = True
        self.model.to(self.device, torch.bfloat16 if work.half else torch.float32)
        if work.setting.compiled:
            self.model.compile()
        self.weights = Weights(decay_groups(self.model, work), work.config)

    def batches(self) -> Iterator[Batch]:
        """On average as many real tokens per step as Maskwright has slots."""
        work, data = self.work, Dataset(self.work.data)
        documents = documents_of(data, work.case.seq_len)
        lengths = np.array([len(document) for document in documents])
        a_step = round(work.case.rows[work.device] * work.case.seq_len / lengths.mean())
        if work.setting.by_length:
            order = by_length(lengths, a_step, work.round_steps)
        else:
            order = in_any_order(lengths, a_step)
        yield from torch.utils.data.DataLoader(
            documents,  # type: ignore[arg-type]
            batch_sampler=order,
            collate_fn=Collator(work, data),
        )

    def step(self, batch: Batch) -> Tensor:
        total = torch.zeros((), device=self.device)
        for part in batch.inputs:
            predictions = int((part["labels"] != IGNORED).sum())
            loss = predictions * self._loss(part)  # its loss is a mean
            (loss / batch.predictions).backward()
            total += loss.detach()
        self.weights.step(self.work.config.optim.lr)
        return total

    def _loss(self, part: dict[str, Tensor]) -> Tensor:
        part = {name: tensor.to(self.device, non_blocking=True) for name, tensor in part.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.work.setting.autocast):
            loss: Tensor = self.model(**part).loss
        return loss


def decay_groups(model: torch.nn.Module, work: Work) -> list[dict[str, Any]]:
    """Parameters of a model of transformers, with and without weight decay."""
    matrices, others = [], []
    for name, weight in model.named_parameters():
        (matrices if weight.ndim == 2 and "embeddings" not in name else others).append(weight)
    decay = work.config.optim.weight_decay
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


class Collator:
    """transformers' collator for the rows of a step, in micro-batches."""

    def __init__(self, work: Work, data: Dataset):
        self._work, self._special = work, np.array(data.manifest.tokenizer.all_special_ids)
        names = ["input_ids", "attention_mask"]
        self._tokenizer = AutoTokenizer.from_pretrained(data.tokenizer_path, model_input_names=names)
        self._collate = DataCollatorForLanguageModeling(self._tokenizer, mlm_probability=work.case.rate)

    def __call__(self, documents: list[NDArray[np.int64]]) -> Batch:
        size = -(-len(documents) // self._work.setting.micro)
        parts = [documents[first : first + size] for first in range(0, len(documents), size)]
        inputs = [dict(self._collate([self._example(document) for document in part])) for part in parts]
        predictions = sum(int((part["labels"] != IGNORED).sum()) for part in inputs)
        lengths = np.array([len(document) for document in documents])
        return Batch(inputs, predictions, lengths, sum(part["input_ids"].numel() for part in inputs))

    def _example(self, document: NDArray[np.int64]) -> dict[str, list[int]]:
        found = {"input_ids": document.tolist(), "special_tokens_mask": np.isin(document, self._special).tolist()}
        if self._work.setting.padding == "row":
            missing, pad = self._work.case.seq_len - len(document), self._tokenizer.pad_token_id
            found["attention_mask"] = [1] * len(document) + [0] * missing
            found = found | {"input_ids": found["input_ids"] + [pad] * missing}
            found["special_tokens_mask"] = found["special_tokens_mask"] + [1] * missing
        return found


def documents_of(data: Dataset, seq_len: int) -> list[NDArray[np.int64]]:
    """All documents with [CLS] and [SEP]; long ones are cut into full rows and a rest, as in Maskwright."""
    vocabulary, capacity, found = Vocabulary.of(data.manifest.tokenizer), seq_len - SPECIALS_PER_PIECE, []
    for block in range(data.n_blocks):
        ends = np.cumsum(data.document_lengths(block).astype(np.int64))
        for document in np.split(data.tokens(block).astype(np.int64), ends[:-1]):
            for first in range(0, len(document), capacity):
                found.append(np.r_[vocabulary.cls, document[first : first + capacity], vocabulary.sep])
    return found


def in_any_order(lengths: NDArray[np.int64], a_step: int) -> Iterator[list[int]]:
    """Endless batches of document numbers."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(len(lengths))
        for first in range(0, len(order) - a_step + 1, a_step):
            yield order[first : first + a_step].tolist()


def by_length(lengths: NDArray[np.int64], a_step: int, round_steps: int) -> Iterator[list[int]]:
    """Batches as transformers sorts them, MEGABATCH at a time. A round takes batches evenly from the longest to the
    shortest, so that it has documents of every length."""
    generator = torch.Generator().manual_seed(SEED)
    together = min(MEGABATCH, len(lengths) // a_step)
    number = 0
    while True:
        order = get_length_grouped_indices(lengths.tolist(), a_step, together, generator)
        batches = [order[first : first + a_step] for first in range(0, together * a_step, a_step)]
        shift = number * 0.618 % 1  # the golden ratio spreads any number of rounds
        for step in range(round_steps):
            yield batches[int((step + shift) / round_steps * len(batches))]
        number += 1


SIDES = {"maskwright": Maskwright, "deepspeed": Engined, "transformers": Transformers}


def serve(pipe: Connection, work: Work) -> None:
    """Answer requests until None. A request is the name of a measurement and its number of steps."""
    try:
        torch.set_num_threads(work.threads)
        side: Side = SIDES[work.setting.side](work)
        batches = side.batches()
        while (request := pipe.recv()) is not None:
            name, steps = request
            pipe.send(MEASUREMENTS[name](side, batches, steps))
    except EOFError:
        return
    except UserError as error:
        pipe.send(str(error))
    except Exception:
        pipe.send(traceback.format_exc())


def measured(side: Side, batches: Iterator[Batch], steps: int) -> Round:
    """Time of a number of steps, from taking a batch to the end of the optimizer step."""
    work, done, losses, lengths, predictions = side.work, Round(steps), [], [], []
    cuda = work.device == "cuda"
    gc.collect()
    torch.cuda.reset_peak_memory_stats() if cuda else _PEAK.write_text("5")
    torch.cuda.synchronize() if cuda else None
    begin = time.perf_counter()
    for _ in range(steps):
        batch = next(batches)
        losses.append(side.step(batch))
        lengths.append(batch.lengths)
        predictions.append(batch.predictions)
        done.slots += batch.slots
    torch.cuda.synchronize() if cuda else None
    done.seconds = time.perf_counter() - begin
    done.peak_bytes = torch.cuda.max_memory_allocated() if cuda else memory("VmHWM")
    done.host_waits = host_waits(side, next(batches)) if cuda else None
    of_all = np.concatenate(lengths)
    done.tokens, done.pairs = int(of_all.sum()), int((of_all**2).sum())
    done.predictions = sum(predictions)
    done.flops = EncoderCosts(work.shape).step_flops(of_all, done.predictions)
    done.losses = [float(loss) / count for loss, count in zip(losses, predictions, strict=True)]
    return done


def host_waits(side: Side, batch: Batch) -> int:
    """Operations of a step that make the host wait for the GPU, as torch reports them."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            side.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in found)


def trained_weights(side: Side, batches: Iterator[Batch], steps: int) -> dict[str, NDArray[np.float32]]:
    """The weights of Maskwright's engine in fp32: of bf16 weights, the optimizer's copies. It takes no step."""
    from deepspeed.utils import safe_get_full_fp32_param

    assert isinstance(side, Engined)
    weights = side.engine.module.named_parameters()
    full = safe_get_full_fp32_param if side.work.half else lambda weight: weight
    return {name: full(weight).detach().cpu().numpy() for name, weight in weights}


MEASUREMENTS = {
    "round": measured,
    "parts": parts_of,
    "weights": trained_weights,
}
