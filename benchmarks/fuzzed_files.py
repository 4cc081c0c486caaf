"""More readers for benchmarks/fuzz_readers.py: models, exports, inputs of users, files of clusters, and commands."""

import gzip
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zstandard
from huggingface_hub import EvalResult
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig

from benchmarks.file_mutations import Reader
from data_prep.cleaning import Grams, KeyRange, find_repeats, join_drops, key_writer
from data_prep.cleaning.contamination import evaluation_texts
from data_prep.common.errors import UnusableInput, unforeseen
from data_prep.common.files import sha256_file, write_json
from data_prep.common.reading import parse_json, read_bytes, unusable
from data_prep.format import Dataset, data_set_problems
from data_prep.jobs import PreparationSettings
from data_prep.jobs.deduplication import ScanRecord, scanned
from data_prep.jobs.plan_inputs import read_group, write_groups
from data_prep.jobs.preparation_plan import Input, PlannedTask, PreparationPlan
from data_prep.sources import GroupedFile, Options, RowReader, SourceInput, examine, examine_group, hub
from data_prep.storage import Cache, text_files
from data_prep.tokenizer import Encoders, Spelling, describe_tokenizer, fetch, load
from evaluation.finetuning import FinetuneSettings, Finetuning
from evaluation.finetuning.example_files import read_columns, read_table
from evaluation.finetuning.head_training import initial_model
from evaluation.generation import Writer
from evaluation.study import Study
from launchers.app import program
from launchers.commands.prep_weights import prep_weights
from launchers.slurm.job_chain import recorded_jobs
from launchers.slurm.requeue_decision import LaunchHistory
from launchers.slurm.supervisor import read_history
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.data import MaskedStream
from pretrain.export import figures_in, merge_models, model_digest, revision_of
from pretrain.export.export_record import ExportRecord
from pretrain.model import EncoderShape
from pretrain.model.families import shape_of
from pretrain.model.padded_model import padded_config, padded_model
from pretrain.model.pretrained_init import initial_state
from pretrain.reporting.node_metrics import SystemMetrics
from tests.support import report_runs
from tests.support.run_folder import make_run
from tests.support.runs import tiny_data
from tests.support.tiny_models import tiny_model

TEXT = "the [MASK] sailed"
COMMANDS = (
    ("status", "RUN"),
    ("status", "RUN", "--json"),
    ("checkpoints", "RUN"),
    ("checkpoints", "RUN", "--quick", "--json"),
    ("report", "RUN"),
    ("replay", "RUN", "--step", "3"),
    ("replay", "RUN", "--step", "2", "--json"),
    ("stop", "RUN"),
    ("config", "show", "RUN/config.yaml"),
)


def more_readers(folder: Path) -> Iterator[Reader]:
    """The readers of this module, with their valid files in `folder`."""
    data = Dataset(folder / "data")
    yield from _of_models(folder, data)
    yield from _of_exports(folder, data)
    yield from _of_tokenizers(folder, data)
    yield from _of_inputs(folder)
    yield from _of_preparations(folder, data)
    yield from _of_shared_files(folder, data)
    yield from _of_clusters(folder)
    yield from _of_streams(folder)
    yield from _commands(folder)


def _written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _of_models(folder: Path, data: Dataset) -> Iterator[Reader]:
    tokens = data.tokenizer_path / "tokenizer.json"
    model = tiny_model(folder / "init", tokens)
    _written(model / "generation_config.json", json.dumps({"bos_token_id": 2, "max_length": 20}))
    shape: EncoderShape = shape_of(BertConfig.from_pretrained(str(model)))
    weights, config = model / "model.safetensors", model / "config.json"

    def initial(vocabulary: str = "same") -> None:
        initial_state(model, shape, data.tokenizer_path, vocabulary=vocabulary)

    yield Reader("model.init config.json", config, initial)
    yield Reader("model.init weights", weights, initial, "safetensors")
    yield Reader("model.init weights, bytes", weights, initial, "bytes")
    yield Reader("model.init tokenizer", model / "tokenizer.json", initial)
    yield Reader("model.init tokenizer, pieces", model / "tokenizer.json", partial(initial, "pieces"))

    def fill() -> None:
        writer, spelling = Writer(model), Spelling.open(model)
        for tokens in writer.fill(TEXT, 3):
            spelling.text([id for id, _ in tokens])

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        yield Reader(f"fill {name}", model / name, fill)
    yield Reader("fill weights", weights, fill, "safetensors")
    given = _written(folder / "model-config.json", (model / "config.json").read_bytes())

    def padded() -> None:
        values = padded_config(json.loads(_text(given)), 16, data.manifest.tokenizer)
        padded_model(values, seed=0)

    yield Reader("model.config", given, padded)
    table = _written(folder / "examples.tsv", "text\tlabel\n" + "the ship\tx\nsail the\ty\n" * 4)
    settings = FinetuneSettings("classification", columns=("text", "label"))
    files = {"train": str(table), "valid": str(table)}

    def tuned() -> None:
        initial_model(model, Finetuning(model, settings, files).task.heads[0], settings, 0)

    yield Reader("fine-tuning config.json", config, tuned)
    yield Reader("fine-tuning tokenizer_config.json", model / "tokenizer_config.json", tuned)
    out = folder / "merged"

    def merge() -> None:
        merge_models([model, model], [0.5, 0.5], "x", out, lambda *_: None)

    def merged() -> None:
        try:
            merge()
        finally:
            _emptied(out)

    _written(model / "README.md", CARD)
    yield Reader("merge, card", model / "README.md", merged, "words")


CARD = "---\nlicense: mit\ntags: [a, b]\n---\n\n# Title\n\ntext | cell\n\n## Training\n\nmore: 1\n"


def _emptied(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink()


def _text(path: Path) -> str:
    """JSON of an object, as a config holds it."""
    data = read_bytes(path)
    try:
        return json.dumps(parse_json(data, dict[str, Any]))
    except ValueError as error:
        raise unusable(path, str(error)) from None


def _of_exports(folder: Path, data: Dataset) -> Iterator[Reader]:
    export = folder / "export"
    tiny_model(export, data.tokenizer_path / "tokenizer.json")
    _written(export / "README.md", CARD)
    record = folder / "recorded" / "maskwright_export.json"

    def published() -> None:
        revision_of(export, "main", "a/b", [])

    yield Reader("card", export / "README.md", published, "words")
    yield Reader("card, bytes", export / "README.md", published, "bytes")
    _written(record, json.dumps(asdict(ExportRecord(3, "0" * 64, {"README.md": "0" * 64}))))
    yield Reader("export record", record, lambda: ExportRecord.read(record.parent), kind=ExportRecord | None)
    pairs = {"score": "sum", "pairs": 3, "accuracy": 0.5, "interval": [0.4, 0.6]}
    held_out = {"loss": 2.5, "masked_accuracy": 0.5, "rows": 3, "loss_interval": [2.0, 3.0]}
    masks = {"rate": 0.15, "seq_len": 16, "data": "books/valid"}
    settings = {"held_out": masks, "pairs": {"file": "blimp.jsonl"}}
    evaluated = {"models": {str(export): {"held_out": held_out, "pairs": pairs}}, "settings": settings}
    results = _written(folder / "evaluated.json", json.dumps(evaluated))
    listed = list[EvalResult]
    yield Reader("evaluation results", results, lambda: figures_in(results, "", [export]), kind=listed)
    identity = {"model": model_digest(export), "epochs": 1, "lr": 1e-3, "valid": "0" * 64}
    tuned = {"task": "classification", "metric": "accuracy", "mean": 0.5, "scores": [0.5, 0.6], "identity": identity}
    scored = _written(folder / "tuned.json", json.dumps(tuned))
    yield Reader("fine-tuning results", scored, lambda: figures_in(scored, identity["model"], []), kind=listed)


def _of_tokenizers(folder: Path, data: Dataset) -> Iterator[Reader]:
    corpus = ["the ship sailed over the sea", "a small ship, 12 men"] * 4
    special = [AddedToken(name, special=True) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    made = {
        "BPE": (models.BPE(), trainers.BpeTrainer, pre_tokenizers.ByteLevel()),
        "Unigram": (models.Unigram(), trainers.UnigramTrainer, pre_tokenizers.Metaspace()),
        "WordLevel": (models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer, pre_tokenizers.Whitespace()),
        "WordPiece": (
            models.WordPiece(unk_token="[UNK]"),
            trainers.WordPieceTrainer,
            pre_tokenizers.BertPreTokenizer(),
        ),
    }
    for kind, (model, trainer, split) in made.items():
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = split
        unknown = {"unk_token": "[UNK]"} if kind == "Unigram" else {}
        tokenizer.train_from_iterator(
            corpus, trainer(vocab_size=60, special_tokens=special, show_progress=False, **unknown)
        )
        place = folder / f"tokenizer-{kind}"
        place.mkdir()
        tokenizer.save(str(path := place / "tokenizer.json"))

        def used(place: Path = place, path: Path = path) -> None:
            fetched = fetch(str(path), place / "fetched")
            info = describe_tokenizer(fetched)
            encoder, _ = Encoders(load(fetched), info).choose(corpus)
            encoder(corpus)
            Spelling.open(fetched).text(range(9))

        yield Reader(f"{kind} tokenizer", path, used)


def _of_inputs(folder: Path) -> Iterator[Reader]:
    cache, texts = Cache(folder / "cache", 0), "first document\n\nsecond: one\n\nthird\n"
    fasta, lines = ">a x\nACGT\nAC\n>b\nGG\n", '{"text": "a b", "id": 1}\n{"text": "c", "id": 2}\n'
    contents = {"txt": texts, "fasta": fasta, "jsonl": lines}
    packed: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}
    for kind, content in contents.items():
        options = Options("text", {"txt": None, "fasta": "header", "jsonl": "id"}[kind])
        for form in ("words", "gz", "zst"):
            if (kind, form) == ("jsonl", "words"):
                continue
            name = f"unit.{kind}" + (f".{form}" if form in packed else "")
            data = packed[form](content.encode()) if form in packed else content.encode()
            path = _written(folder / name, data)

            def rows(path: Path = path, kind: str = kind, options: Options = options) -> None:
                source = SourceInput("", str(path), kind)
                found = examine(source, cache, options)
                end = 1 if path.suffix in (".gz", ".zst") else found.bytes
                deque(RowReader(source, 0, end, options, cache), 0)  # keeps no row

            yield Reader(f"input .{name.partition('.')[2]}", path, rows, form)
    for form, pack in packed.items():
        path = _written(folder / f"lines.txt.{form}", pack(texts.encode()))
        yield Reader(f"text lines .{form}", path, partial(text_files.read_lines, str(path)), form)
        path = _written(folder / f"evaluation.jsonl.{form}", pack(lines.encode()))
        yield Reader(f"contamination list .{form}", path, lambda path=path: list(evaluation_texts(path)), form)
    for kind, content in {"jsonl": lines, "tsv": "a\tb\nc\td\n", "txt": texts}.items():
        path = _written(folder / f"evaluation.{kind}", content)
        form = "lines" if kind == "jsonl" else "words"
        yield Reader(f"contamination list .{kind}", path, lambda path=path: list(evaluation_texts(path)), form)
    tsv = _written(folder / "cells.tsv", "text\tlabel\na b\t1\nc\t2\n")
    yield Reader("fine-tuning table .tsv", tsv, lambda: read_table(str(tsv), ["text", "label"]), "words")
    conll = _written(folder / "words.conllu", "1\ta\t_\tDET\t_\t_\t_\t_\t_\t_\n2\tb\t_\tNOUN\t_\t_\t_\t_\t_\t_\n\n")
    yield Reader("fine-tuning columns", conll, lambda: read_columns(str(conll)), "words")


def _of_preparations(folder: Path, data: Dataset) -> Iterator[Reader]:
    shard, manifest = data.manifest.shards[0], data.manifest

    def verified() -> None:
        list(data_set_problems(data.path, manifest, 1, None))

    for name in (shard.name, shard.index_name):
        yield Reader("shard check", data.path / "shards" / name, verified, "bytes")
    grams = folder / "grams.npy"
    grams.write_bytes(Grams({8: np.arange(4, dtype=np.uint64)}).to_bytes())
    yield Reader("contamination array", grams, lambda: Grams.load(grams), "bytes")
    words = _written(folder / "words.tsv", "the\t1.5\nship\n")

    def weighed() -> None:
        (folder / "weighed.json").unlink(missing_ok=True)
        with _silent():
            prep_weights(str(data.path), folder / "weighed.json", words=words)

    yield Reader("list of word weights", words, weighed, "words")
    table = folder / "nested.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", None, "c"]).dictionary_encode(), "meta": [{"id": 1}] * 3}), table)

    def rows() -> None:
        source, options = SourceInput("", str(table), "parquet"), Options("text", "meta.id")
        cache = Cache(folder / "cache", 0)
        list(RowReader(source, 0, len(examine(source, cache, options).unit_bytes or ()), options, cache))

    yield Reader("input .parquet, nested", table, rows, "bytes")


def _of_shared_files(folder: Path, data: Dataset) -> Iterator[Reader]:
    """Files that other processes write: scans of duplicates, the cache, the nodes' metrics, a saved data set."""
    out = folder / "scanned"
    settings = PreparationSettings(deduplicate="exact")
    plan = PreparationPlan(
        [Input("a", "", "txt", 9, "0" * 64)],
        [PlannedTask(0, 0, 9, 9)],
        describe_tokenizer(data.tokenizer_path),
        settings,
    )
    keys = out / "prep" / "scan" / "00000.exact"
    keys.parent.mkdir(parents=True)
    with key_writer(keys, plan.ranges, None) as write:
        write(["a", "b", "a"])
    record = keys.with_name("00000.json")
    write_json(record, asdict(ScanRecord(plan.task_hash(0), plan.ranges, 3, {"exact": sha256_file(keys)})))
    yield Reader("scan record", record, lambda: scanned(plan, 0, out), kind=bool)
    grouped = [GroupedFile("a", "a.txt", 9, "0" * 32)]
    write_groups([grouped], out)
    group = Input("a", "", "txt", 9, examine_group(grouped).digest)
    listed = out / "prep" / "files" / f"{group.digest}.json"
    yield Reader("files of a group", listed, lambda: read_group(out, group), kind=list[GroupedFile])
    key_range, drop = KeyRange([keys], [3], 2, 0, plan.ranges), out / "drop"
    yield Reader("keys of a scan", keys, lambda: find_repeats(key_range, drop, 1 << 20), "bytes")
    find_repeats(key_range, dropped := out / "dropped", 1 << 20)
    yield Reader("dropped documents", dropped, lambda: join_drops([dropped], 0, out / "joined.npy"), "bytes")
    cache, key = Cache(folder / "shared", 1 << 20), "ab" * 16

    def cached() -> bytes:
        with cache.open(key, lambda: b"block") as descriptor:
            return os.read(descriptor, 9)

    cached()
    yield Reader("cache entry", cache.entries / key, cached, "bytes", bytes)
    node = folder / "nodes" / "a.json"
    _written(node, json.dumps({"cpu_percent": 1.5, "time": 2.0}))
    fresh = lambda: SystemMetrics(node.parent, 0, ["a"], 0)._news()  # noqa: E731
    yield Reader("metrics of a node", node, fresh, kind=dict[str, float])
    saved = folder / "saved"
    datasets.Dataset.from_dict({"text": ["a b", "c"]}).save_to_disk(str(saved))

    def rows() -> None:
        hub.load_hub.cache_clear()
        source, options = SourceInput("", f"hub:{saved}", "hub"), Options("text", None)
        list(RowReader(source, 0, len(examine(source, cache, options).unit_bytes or ()), options, cache))

    for name, form in {"state.json": "json", "dataset_info.json": "json", "data-00000-of-00001.arrow": "bytes"}.items():
        yield Reader(f"saved data set, {name}", saved / name, rows, form)


def _of_clusters(folder: Path) -> Iterator[Reader]:
    supervisor = folder / "supervisor.json"
    write_json(supervisor, asdict(LaunchHistory(7, 20, 1, 1)))

    def history() -> LaunchHistory:
        with _silent():
            return read_history(supervisor, 7)

    yield Reader("supervisor.json", supervisor, history, kind=LaunchHistory)
    jobs = _written(folder / "jobs", "12\n14\n")
    yield Reader("job list", jobs, lambda: recorded_jobs(jobs), "words", list[str])
    profile = _written(folder / "site.yaml", "partition: gpu\naccount: a\ntime: '24:00:00'\noptions: [--exclusive]\n")
    needed = ["run.dir=x", "data.train=x", "train.steps=3"]
    yield Reader("cluster profile", profile, lambda: load_config(None, needed, profile), "words", Config)
    trained = {"train": {"steps": 5}}
    arms = [{"name": f"lr={rate}", "overrides": {"optim.lr": rate}, "config": trained} for rate in (1, 2)]
    values = {"version": 2, "arms": arms, "baseline": "lr=1", "about": "", "seeds": 2, "stop_early": False}
    values |= {"processes": 1, "primary": "held_out", "losses": True, "data": "x", "seq_len": None}
    values |= {"pairs": None, "pairs_limit": None, "finetune": [], "contents": {"data": "0"}}
    study = folder / "study" / "study.json"
    _written(study, json.dumps(values))
    yield Reader("study.json", study, lambda: Study.open(study.parent))


def _of_streams(folder: Path) -> Iterator[Reader]:
    tiny_data(folder / "tiny")
    stream = MaskedStream(str(folder / "tiny" / "train"), 4, 16, steps=1 << 30)
    next(iter(stream))
    state = _written(folder / "stream.json", json.dumps(stream.state_dict()))

    def resumed() -> None:
        stream.load_state_dict(json.loads(_text(state)))
        next(iter(stream))

    yield Reader("MaskedStream state", state, resumed)


def _commands(folder: Path) -> Iterator[Reader]:
    """Each command on a run folder with one damaged file."""
    run = folder / "spoiled" / "run"
    make_run(folder / "tiny", run)
    report_lines = report_runs.prediction_lines("0f", [2, 4])
    _written(run / "predictions.jsonl", b"".join(report_lines))
    status = {"state": "running", "step": 3, "total_steps": 6, "reason": "", "next_action": "none", "time": 1.7e9}
    _written(run / "status.json", json.dumps(status))
    host = {"host": "a", "ranks": [0, 1], "gpus": [{"name": "x"}], "processor": "p", "cores": 2}
    start = {"time": "2023-11-14T22:13:20+0000", "after_step": 0, "processes": 2, "hosts": [host], "parameters": 1000}
    start |= {"packages": {"maskwright": "1"}, "git_commit": "0" * 40, "slurm": {"SLURM_JOB_ID": "7"}}
    start |= {"data": [{"location": "x", "documents": 3, "tokens": 9, "fingerprint": "0" * 64}], "phases": ["only"]}
    _written(run / "environment.json", json.dumps(start | {"earlier_starts": [start]}))
    (run / "tokenizer").mkdir(exist_ok=True)
    for path in (folder / "data" / "tokenizer").glob("*"):
        _written(run / "tokenizer" / path.name, path.read_bytes())
    config = run / "config.yaml"
    config.write_text(json.dumps(yaml.safe_load(config.read_text())))
    forms = {"journal.jsonl": "lines", "predictions.jsonl": "lines"}
    files = [*forms, "config.yaml", "status.json", "environment.json", "checkpoints/step-00000006/manifest.json"]
    for words in COMMANDS:
        for name in files:
            if (run / name).exists():
                read = partial(_command, [word.replace("RUN", str(run)) for word in words], run)
                yield Reader(f"maskwright {' '.join(words)}", run / name, read, forms.get(name, "json"))


def _command(words: list[str], run: Path) -> None:
    try:
        with _silent():
            program()(words, prog_name="maskwright", standalone_mode=False)
    except SystemExit:
        pass
    except OSError as error:
        if error.filename is None:
            raise
        raise UnusableInput(unforeseen(error)) from None
    finally:
        (run / "STOP").unlink(missing_ok=True)


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what the block prints."""
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        yield
