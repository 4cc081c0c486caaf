"""Damaged and hostile versions of all files that the programs read: a one-line error, or values of the right types.

    python -m benchmarks.fuzz_readers --cases 20000 --seed 0
    python -m benchmarks.fuzz_readers --cases 1000 --only status --out /tmp/fuzz.md

Each case replaces a file of the real writer by a mutation and calls the public function that reads it. The function
must return values of the right types (accepted) or raise a UserError of one line (refused). Anything else is a failure.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash

from benchmarks.file_mutations import Reader, attack, verdict
from benchmarks.fuzzed_files import more_readers
from benchmarks.harness import options, warn_if_busy, write_page
from benchmarks.harness import table as markdown_table
from data_prep.common.files import write_json
from data_prep.common.reading import read_json
from data_prep.format import Dataset, WeightList
from data_prep.jobs import PreparationSettings
from data_prep.jobs.preparation_plan import (
    Input,
    InputLocations,
    PlannedTask,
    PreparationPlan,
    locations_path,
    plan_path,
    read_locations,
    read_plan,
    write_plan,
)
from data_prep.jobs.task_worker import TaskRecord, read_record, record_path
from data_prep.sources import Options, RowReader, SourceInput, SourceRow, examine
from data_prep.storage import Cache
from data_prep.tokenizer import describe_tokenizer
from evaluation.finetuning import FinetuneResults
from evaluation.finetuning.example_files import read_table
from evaluation.finetuning.result_file import Epoch, SeedResult
from evaluation.likelihood.minimal_pairs import MinimalPair, read_pairs
from pretrain.checkpoint import Checkpoint, read
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.data import PLAN_VERSION, MixturePosition
from pretrain.data.stream import Position
from pretrain.engine.resharding import load_file
from pretrain.export.resolve_model import is_causal
from pretrain.guards.step_guard import GuardHistory
from pretrain.guards.watchdog import Beat
from pretrain.model import EncoderShape
from pretrain.reporting.environment import write_environment
from pretrain.reporting.prediction_table import predictions_of
from pretrain.resuming import state_problem
from pretrain.run import Entry, Journal, JournalReader, JournalTable, RunFolder, Status
from pretrain.tracking import RunRecord
from tests.support.wordpiece_set import SHIP, source, wordpiece_set

LONG_NAME = "a-long-name" * 20  # folder of all files: messages must be short although paths are long


def main() -> None:
    parser = options(__doc__, "fuzz_readers")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only readers whose name contains this")
    args = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        counts, failures = campaign(Path(folder), args.cases, args.seed, args.only)
    write_page(args.out, page(counts, failures), ("torch", "pyarrow", "orjson", "pydantic"))
    sys.exit(bool(failures))


def campaign(folder: Path, cases: int, seed: int, only: str = "") -> tuple[Counter[tuple[str, str]], list[str]]:
    """Counts by reader and result, and a line for each failure; each reader has the same number of cases."""
    folder = folder / LONG_NAME
    folder.mkdir()
    table = [reader for reader in readers(folder) if only in reader.name]
    counts: Counter[tuple[str, str]] = Counter()
    failures = []
    for number, reader in enumerate(table):
        valid, rng = reader.path.read_bytes(), random.Random(f"{seed} {reader.name}")
        verdict(reader)  # the first call may import libraries, which takes seconds
        if (found := verdict(reader)) != "accepted":
            raise AssertionError(f"{reader.name}: the valid file is not accepted: {found}")
        for _ in range(cases // len(table) + (number < cases % len(table))):
            mutation, found = attack(reader, valid, rng)
            good = found in ("accepted", "refused")
            counts[reader.name, found if good else found.split(":")[0].split(" of ")[0]] += 1
            counts[reader.name, "types checked"] += reader.kind is not None
            if not good:
                failures.append(f"{reader.name}, {mutation}: {found}")
    return counts, failures


def page(counts: Counter[tuple[str, str]], failures: list[str]) -> str:
    columns = ["accepted", "refused", "traceback", "hang", "wrong type", "message", "memory"]
    names = list(dict.fromkeys(name for name, _ in counts))
    rows = [
        _row(name, "yes" if counts[name, "types checked"] else "", [counts[name, c] for c in columns]) for name in names
    ]
    rows.append(_row("**all**", "", [sum(counts[name, column] for name in names) for column in columns]))
    shown = "".join(f"- {line}\n" for line in failures[:50])
    return f"""# Damaged and hostile files

Each case replaces a file by a mutation and calls the function that reads it. "Message" counts errors of more than 300
characters or more than one line. All files are in a folder whose name has 220 characters.

"Memory" counts cases that add more than 512 MB to the peak. Lines that begin with maskwright run a command on a run
folder with one damaged file.

If "types" is yes, other code compares an accepted value with its declared types, but not its range. Otherwise, accepted
only means that the reader returned without an error. Mutations are random, so not every value meets every mutation. Not
attacked here: the answers and records of studies and Slurm (`test_study_damage.py` and `test_slurm_damage.py` do that),
and copies of the journal for TensorBoard and W&B.

{markdown_table(["reader", "types", "cases", *columns], *rows, left=2)}

{shown}"""


def _row(name: str, types: str, counts: list[int]) -> list[str]:
    return [name, types, f"{sum(counts):,}", *(f"{count:,}" for count in counts)]


def readers(folder: Path) -> list[Reader]:
    """Every reader, with a valid file in `folder`."""
    return [*_of_runs(folder), *_of_data(folder), *_of_models(folder), *_of_inputs(folder), *more_readers(folder)]


def _of_runs(folder: Path) -> Iterator[Reader]:
    run = RunFolder(folder / "run")
    run.create()
    run.config.write_text(json.dumps({"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 10}}))
    yield Reader("config.yaml, bytes", run.config, lambda: load_config(run.config), "bytes")
    yield Reader("config.yaml", run.config, lambda: load_config(run.config))
    run.write_status("running", 3, 10, "a reason", "none")
    yield Reader("status.json", run.status, run.recorded_status, kind=Status)
    yield from _checkpoints(folder)
    for start in range(2):
        now = {"python": "3.11", "processes": 2, "hosts": [{"host": "a", "ranks": [0], "gpus": [{"name": "x"}]}]}
        write_environment(run.environment, now, start)
    yield Reader("environment.json", run.environment, lambda: run.read_environment())

    def record_again() -> None:
        write_environment(run.environment, {"python": "3"}, 1)

    yield Reader("environment.json, new start", run.environment, lambda: _or_os_error(record_again))
    record = run.path / "mlflow_run.json"
    write_json(record, asdict(RunRecord("http://a", "b", "c", {"p": "1"}, {"t": "2"}, inputs=[{"name": "d"}])))
    yield Reader("mlflow_run.json", record, lambda: RunRecord.load(run.path), kind=RunRecord | None)
    journal = Journal(run.journal)
    for step in range(1, 5):
        batch = {"position": {"dealt": 1}, "rows": 2, "seq_len": 8}
        journal.append(step, {"train/loss": 1.5, "lr": float("nan")}, batch)
    journal.close()
    # A missing journal is an OSError; the caller handles it.
    guarded = lambda read: lambda: _or_os_error(read)  # noqa: E731
    entries = guarded(lambda: JournalReader(run.journal).entries(batches=True))
    yield Reader("journal.jsonl", run.journal, entries, "lines", list[Entry] | None)
    latest = guarded(lambda: (JournalReader(run.journal).latest(), JournalReader(run.journal).training_step(2)))
    yield Reader("journal.jsonl, end", run.journal, latest, "lines")
    yield Reader("journal.jsonl, columns", run.journal, guarded(lambda: JournalTable.read(run.journal)), "lines")
    beat = run.path / "beat.json"
    write_json(beat, asdict(Beat(1, 2, "data")))
    yield Reader("heartbeat", beat, lambda: read_json(beat, Beat), kind=Beat)
    asked = {"slot": 0, "original": SHIP, "seen": SHIP, "predictions": [{"place": 2, "kind": "mask"}]}
    answer = {"key": "0f", "step": 1, "ids": [[5, 6]], "probabilities": [[0.5, 0.25]], "right": [0.5]}
    run.predictions.write_text(f"{json.dumps({'key': '0f', 'passages': [[asked]]})}\n{json.dumps(answer)}\n")
    asked_of = lambda: predictions_of(run.predictions, run.tokenizer)  # noqa: E731
    yield Reader("predictions.jsonl", run.predictions, asked_of, "lines")


def _or_os_error(read: Any) -> Any:
    try:
        return read()
    except OSError:
        return None


def _checkpoints(folder: Path) -> Iterator[Reader]:
    path = folder / "step-00000001"
    path.mkdir()
    torch.save({"module": {"a": torch.zeros(3)}, "n": 1}, path / "model.pt")
    config = Config.model_validate({"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 10}})
    state = {
        "position": asdict(MixturePosition(1, (Position(),))),
        "replaced_tokens": 0,
        "guards": asdict(GuardHistory()),
        "identity": {"plan version": PLAN_VERSION},
        "layout": {"processes": 1, "zero.stage": 0},
        "shape": asdict(EncoderShape(11, 1, 8, 1, 16, 8, 0)),
        "config": config.model_dump(mode="json"),
    }
    Checkpoint(path, 1, state, {"model.pt": {"bytes": 9, "xxh3_128": "0" * 32}}).write()

    def opened() -> Any:
        problem = state_problem(read(path))
        assert problem is None or (problem.isprintable() and len(problem) <= 300), problem
        return problem

    yield Reader("checkpoint manifest", path / "manifest.json", opened, kind=str | None)
    yield Reader("checkpoint manifest, sealed", path / "manifest.json", opened, kind=str | None, seal=_sealed)
    yield Reader("checkpoint tensors", path / "model.pt", lambda: load_file(path / "model.pt"), "bytes")
    mapped = lambda: load_file(path / "model.pt", mmap=True)  # noqa: E731
    yield Reader("checkpoint tensors, mapped", path / "model.pt", mapped, "bytes")


def _sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in manifest.items() if name != "checksum"}
    return content | {"checksum": xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())}


def _of_data(folder: Path) -> Iterator[Reader]:
    data = wordpiece_set(folder / "data", [[SHIP, SHIP], [SHIP]], [source("a", "", 0, 2, 3, 15)])

    def opened() -> None:
        found = Dataset(data.path)
        for block in range(found.n_blocks):
            found.tokens(block), found.ids(block), found.document_lengths(block), found.document_ends(block)

    yield Reader("data set manifest", data.path / "manifest.json", opened)
    shard = data.manifest.shards[0]
    yield Reader("data set index", data.path / "shards" / shard.index_name, opened, "bytes")
    yield Reader("data set shard", data.path / "shards" / shard.name, opened, "bytes")
    tokenizer, out = data.path / "tokenizer", folder / "out"
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"mask_token": "[MASK]", "pad_token": {"content": "[PAD]"}})
    )
    described = lambda: describe_tokenizer(tokenizer)  # noqa: E731
    yield Reader("tokenizer.json", tokenizer / "tokenizer.json", described)
    yield Reader("tokenizer_config.json", tokenizer / "tokenizer_config.json", described)
    (out / "prep" / "tasks").mkdir(parents=True)
    inputs = [Input("a.txt", "", "txt", 10, "0" * 64)]
    plan = PreparationPlan(inputs, [PlannedTask(0, 0, 10, 10)], describe_tokenizer(tokenizer), PreparationSettings())
    write_plan(plan, out)
    yield Reader("plan.json", plan_path(out), lambda: read_plan(out), kind=PreparationPlan)
    write_json(locations_path(out), asdict(InputLocations(["/a.txt"], "/tmp", 5, 0.01, {})))
    yield Reader("place.json", locations_path(out), lambda: read_locations(out), kind=InputLocations)
    done = {"hash": plan.task_hash(0), "task": 0, "lines": 1, "shards": {".": [asdict(shard)]}, "text_bytes": {".": 3}}
    none = dict.fromkeys(["quarantine_sha256", "first_unreadable", "drop_sha256"])
    write_json(record_path(out, 0), {**done, **none, "left_out": {"a": 1}, "encoder": "x", "note": ""})
    yield Reader("task record", record_path(out, 0), lambda: read_record(plan, 0, out), kind=TaskRecord | None)
    weights = folder / "weights.json"
    WeightList("0" * 64, [1.0, 0.5]).write(weights)
    yield Reader("weight list", weights, lambda: WeightList.read(weights), kind=WeightList)


def _of_models(folder: Path) -> Iterator[Reader]:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"], "is_decoder": False}))
    yield Reader("model config.json", model / "config.json", lambda: is_causal(model), kind=bool)


def _of_inputs(folder: Path) -> Iterator[Reader]:
    pairs = folder / "pairs.jsonl"
    pairs.write_text('{"sentence_good": "a b", "sentence_bad": "b a", "UID": "x", "field": 1}\n' * 3)
    yield Reader("pairs", pairs, lambda: read_pairs(str(pairs)), "lines", list[MinimalPair])
    table = folder / "table.jsonl"
    table.write_text('{"text": "a b", "label": 1}\n' * 3)
    yield Reader("fine-tuning table", table, lambda: read_table(str(table), ["text", "label"]), "lines")
    report, identity = folder / "report.json", {"task": "x"}
    FinetuneResults("f1", identity, {}, [SeedResult(0, 1.5, [Epoch(1.0, {"m": 0.5}, {"f1": 0.5})])]).write(report)

    def continued() -> list[SeedResult]:
        found = FinetuneResults("f1", identity, {})
        found.resume_from(report)
        return found.results

    yield Reader("fine-tuning report", report, continued, kind=list[SeedResult])
    options, cache = Options("text", "id"), Cache(folder / "cache", 0)
    lines = folder / "input.jsonl"
    lines.write_text('{"text": "a b", "id": 1}\n{"text": "c", "id": "x"}\n')

    def documents() -> list[SourceRow]:
        return list(RowReader(SourceInput("", str(lines), "jsonl"), 0, _size(lines), options, cache))

    yield Reader("input .jsonl", lines, documents, "lines")
    parquet = folder / "input.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "id": [1, 2]}), parquet)

    def rows() -> list[SourceRow]:
        source = SourceInput("", str(parquet), "parquet")
        return list(RowReader(source, 0, len(examine(source, cache, options).unit_bytes or ()), options, cache))

    yield Reader("input .parquet", parquet, rows, "bytes")


def _size(path: Path) -> int:
    return path.lstat().st_size if path.is_file() else 1


if __name__ == "__main__":
    main()
