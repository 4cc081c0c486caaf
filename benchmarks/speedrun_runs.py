"""Data and runs of the speedrun: each run is a folder with its measured.json, which is used again."""

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoModelForMaskedLM

from benchmarks import harness
from benchmarks.speedrun_held_out import Passage, bits_per_byte, nats, passages_of, unigram_nats
from benchmarks.speedrun_recipes import EASY, OPTIM, SEQ_LEN, WARMUP, Setting, nested
from benchmarks.train_vs_hf import prepare, run_trainer, side_environment, trainer_settings, write_text
from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer
from data_prep.format import Dataset
from evaluation.likelihood.predictors import Unigram
from pretrain.export import exported_folder, load_model, load_tokenizer
from pretrain.run import JournalReader

_NEVER = 10**9
_PROBE_STEPS, _PROBE_SKIPPED = 24, 8


@dataclass(frozen=True)
class Point:
    """Bits per byte of the held-out words after a number of slots and seconds of training."""

    tokens: float
    seconds: float
    bits: float


@dataclass(frozen=True)
class Result:
    """A finished run, its points in order, and the folder of its last model."""

    name: str
    seed: int
    points: tuple[Point, ...]
    model: str

    @property
    def end(self) -> Point:
        return self.points[-1]

    def reaches(self, target: float) -> Point | None:
        """The first point with at most `target` bits per byte, by linear interpolation, or None.

        Bits of a run that diverged are not a number, and reach nothing.
        """
        for before, point in zip((None, *self.points), self.points, strict=False):
            if not point.bits <= target:
                continue
            if before is None or not math.isfinite(before.bits):
                return point
            share = (before.bits - target) / (before.bits - point.bits)
            tokens = before.tokens + share * (point.tokens - before.tokens)
            return Point(tokens, before.seconds + share * (point.seconds - before.seconds), target)
        return None


@dataclass(frozen=True)
class Bench:
    """Settings of all runs.

    work: their folders. out: a file that lists all results after each run. vocabulary: tokens of the usual recipe.
    """

    work: Path
    out: Path
    size: dict[str, int]
    vocabulary: int
    threads: int
    precision: str

    @property
    def tokenizer(self) -> Path:
        return self.work / "usual-tokenizer"

    @property
    def passages(self) -> list[Passage]:
        return [Passage(**values) for values in json.loads((self.work / "passages.json").read_text())]

    def prepare(self, inputs: list[str], documents: int, passages: int) -> None:
        """Write the text, a tokenizer and a data set for each vocabulary, and the held-out passages, unless done.

        The last fiftieth of the documents is held out. Tokenizers are byte-level BPE, which keep the whole text.

        Raises UserError if --work has data of other inputs, documents, passages or vocabulary.
        """
        text = [str(Path(name).absolute()) if Path(name).exists() else name for name in inputs]
        settings = {"input": text, "documents": documents, "passages": passages, "vocabulary": self.vocabulary}
        prepared = self.work / "prepared.json"
        if (self.work / "passages.json").exists():
            stored = json.loads(prepared.read_text()) if prepared.exists() else "unknown settings"
            if stored != settings:
                raise UserError(f"{self.work} has data of {stored}, not {settings}; name another --work")
            return
        self.work.mkdir(parents=True, exist_ok=True)
        lines = write_text(inputs, documents, self.work / "all.jsonl").read_text(encoding="utf-8").splitlines(True)
        texts, cut = [json.loads(line)["text"] for line in lines], documents - max(1, documents // 50)
        train, easy = self.work / "train.jsonl", self.work / "easy.jsonl"
        train.write_text("".join(lines[:cut]), encoding="utf-8")
        easy.write_text("".join(lines[number] for number in easiest(texts[:cut])), encoding="utf-8")
        tokenizers = []
        for name, factor in {"usual": 1.0, "half": 0.5, "twice": 2.0}.items():
            tokenizer = self.work / f"{name}-tokenizer"
            shutil.rmtree(tokenizer, ignore_errors=True)
            words = ("--kind", "bpe", "--vocab-size", round(factor * self.vocabulary), "--out", tokenizer)
            harness.maskwright("tokenizer", "train", "--input", train, *words, cwd=self.work)
            tokenizers.append(load_tokenizer(tokenizer))
            self._data(train, tokenizer, name)
        self._data(easy, self.tokenizer, EASY)
        chosen = passages_of(texts[cut:], tokenizers, passages, SEQ_LEN - 2)
        if not chosen:
            raise UserError(
                f"no passage of {documents - cut} held-out documents fits rows of {SEQ_LEN}; use more documents"
            )
        _write(prepared, settings)
        _write(self.work / "passages.json", [asdict(passage) for passage in chosen])

    def _data(self, text: Path, tokenizer: Path, name: str) -> None:
        shutil.rmtree(self.work / name, ignore_errors=True)
        prepare(text, tokenizer, self.work / name, self.threads)

    def unigram(self) -> float:
        """Bits per byte of token frequencies."""
        data = Dataset(self.work / "usual")
        model = Unigram(data, data.token_counts())
        values = unigram_nats(model.log_probabilities, load_tokenizer(self.tokenizer), self.passages)
        return bits_per_byte(values, self.passages)

    def maskwright(self, name: str, values: dict[str, Any], seed: int, shares: Sequence[float] = (1.0,)) -> Result:
        """A run of `maskwright train`, measured after these shares of its steps; or its stored result.

        values: as values_of gives them, by `section.key`.
        """
        steps = sorted({max(1, round(share * values["train.steps"])) for share in shares})
        folder = self._folder(name, values, seed, steps)
        if not (folder / "measured.json").exists():
            _empty(folder)
            config = nested(values | self._shared(folder, seed, steps))
            for part in (config, *config.get("phases", [])):
                part["data"]["train"] = str(self.work / part["data"]["train"])
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
            environment = side_environment(folder, self.threads)
            harness.maskwright("train", folder / "config.yaml", "--procs", 1, cwd=folder, env=environment)
            models = [exported_folder(folder / "run", step, averaged="optim.ema" in values) for step in steps]
            times = training_times(folder / "run/journal.jsonl")
            points = [Point(*times[step], self._bits(model)) for step, model in zip(steps, models, strict=True)]
            shutil.rmtree(folder / "run/checkpoints")
            _write(folder / "measured.json", asdict(Result(name, seed, tuple(points), str(models[-1]))))
        return self._result(folder)

    def trainer_steps(self, usual: Setting, model: Path, minutes: float) -> int:
        """Steps of transformers.Trainer in some minutes, by a probe of a few. model: see `trainer`."""
        settings = self._trainer_settings(usual, model, 0, _PROBE_STEPS)
        folder = self._folder("probe of transformers.Trainer", settings)
        if not (folder / "result.json").exists():
            _empty(folder)
            run_trainer(settings, folder, self.threads)
        ends = json.loads((folder / "result.json").read_text())["step_ends"]
        seconds = (ends[-1] - ends[_PROBE_SKIPPED - 1]) / (_PROBE_STEPS - _PROBE_SKIPPED)
        return max(2, round(60 * minutes / seconds))

    def trainer(self, usual: Setting, model: Path, seed: int, steps: int) -> Result:
        """The usual recipe in transformers.Trainer, or its stored result. model: an export of the same architecture."""
        name = "usual recipe, transformers.Trainer"
        settings = self._trainer_settings(usual, model, seed, steps) | {"save_at": [steps]}
        folder = self._folder(name, settings)
        if not (folder / "measured.json").exists():
            _empty(folder)
            [point] = run_trainer(settings, folder, self.threads)["points"]
            # Its rows are cut from documents in sequence, and rarely begin with [CLS]: the better reading counts.
            bits = min(self._bits(Path(point["model"]), bare) for bare in (False, True))
            end = Point(steps * usual.batch * SEQ_LEN, point["seconds"], bits)
            _write(folder / "measured.json", asdict(Result(name, seed, (end,), point["model"])))
        return self._result(folder)

    def _trainer_settings(self, usual: Setting, model: Path, seed: int, steps: int) -> dict[str, Any]:
        """Settings of hf_trainer.py, with the optimizer of `_shared`."""
        sizes = json.loads((model / "config.json").read_text())
        if sizes["model_type"] == "modernbert":
            sizes["sparse_prediction"] = True  # only masked tokens pass the vocabulary matrix, which is faster
        arguments = {"per_device_train_batch_size": usual.batch, "learning_rate": usual.lr, "logging_steps": 50}
        arguments["warmup_steps"] = round(WARMUP * steps)
        settings = trainer_settings(self.work / "train.jsonl", self.tokenizer, sizes, steps, arguments)
        return settings | {"seed": seed, "rate": usual.mask_rate, "bf16": self.precision == "bf16"}

    def _shared(self, folder: Path, seed: int, steps: list[int]) -> dict[str, Any]:
        """Config values of all of Maskwright's runs."""
        return {f"optim.{key}": value for key, value in OPTIM.items()} | {
            "run.dir": str(folder / "run"),
            "run.seed": seed,
            "model.size": self.size,
            "model.max_positions": SEQ_LEN,
            "train.precision": self.precision,
            "checkpoint.every_steps": _NEVER,
            "checkpoint.at_steps": steps,
            "guard.max_skipped": _NEVER,  # a rate that is too high ends with a high loss, not with an error
            "track.uri": "none",
        }

    def _bits(self, model: Path, bare: bool = False) -> float:
        tokenizer = load_tokenizer(model if (model / "tokenizer.json").exists() else self.tokenizer)
        passages = self.passages
        return bits_per_byte(nats(load_model(model, AutoModelForMaskedLM), tokenizer, passages, bare), passages)

    def _folder(self, name: str, *settings: Any) -> Path:
        """Folder of a run, which depends on all that decides its result."""
        decisive = [*settings, self.size, self.vocabulary, self.precision, self.threads]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
        return self.work / f"{'-'.join(name.replace(',', '').split())}-{digest}"

    def _result(self, folder: Path) -> Result:
        """The result of a folder; it is also added to the list of all results."""
        values = json.loads((folder / "measured.json").read_text())
        self.out.parent.mkdir(parents=True, exist_ok=True)
        listed = json.loads(self.out.read_text()) if self.out.exists() else {}
        shown = {name: value for name, value in values.items() if name != "model"}  # a path of this machine
        _write(self.out, listed | {folder.name: shown})
        result = Result(**values | {"points": tuple(Point(**point) for point in values["points"])})
        end = result.end
        amount = f"{end.tokens / 1e6:.2f} M tokens, {end.seconds:.0f} s"
        print(f"{result.name}, seed {result.seed}: {end.bits:.4f} bits per byte, {amount}", flush=True)
        return result


def easiest(texts: Sequence[str]) -> list[int]:
    """Numbers of the half of the texts with the most frequent words, by the mean rank of their words, ascending."""
    words = [text.lower().split() for text in texts]
    counts = Counter(word for text in words for word in text)
    rank = {word: number for number, (word, _) in enumerate(counts.most_common())}
    means = [sum(rank[word] for word in text) / max(1, len(text)) for text in words]
    return sorted(sorted(range(len(texts)), key=means.__getitem__)[: max(1, len(texts) // 2)])


def training_times(journal: Path) -> dict[int, tuple[int, float]]:
    """Slots and seconds of training until the end of each step of a run, the time between steps included."""
    times: dict[int, tuple[int, float]] = {}
    start, slots = None, 0
    for entry in JournalReader(journal).entries(batches=True):
        if "train/loss" in entry.metrics and entry.batch:
            start = entry.time - entry.metrics["speed/step_seconds"] if start is None else start
            slots += entry.batch["rows"] * entry.batch["seq_len"]
            times[entry.step] = (slots, entry.time - start)
    return times


def _empty(folder: Path) -> None:
    """An empty folder: a run that was interrupted starts again, because its times would not be comparable."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _write(path: Path, values: Any) -> None:
    with atomic_writer(path) as file:
        file.write(json.dumps(values, indent=1).encode())
