"""The first batch of data sets of up to a trillion tokens, at the first step and in the middle: time and memory.

    python benchmarks/planning.py

The data sets are real folders, each listing as many shards as its size takes. All shards are one, of 256 MB, under
other names (hard links), so that they need no more room than it. Every measurement has a process of its own: it opens
the data set and builds a batch as training does. Prints a table and writes it to --out.
"""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import numpy as np

from benchmarks.machine import conditions, warn_if_busy
from data_prep.errors import UserError
from data_prep.files import atomic_writer, write_json
from data_prep.format import (
    Dataset,
    Manifest,
    ShardInfo,
    TokenizerInfo,
)
from data_prep.format.shard_format import (
    FORMAT,
    FORMAT_VERSION,
    DataSetTotals,
    fingerprint,
    index_name,
    read_index,
    shard_name,
)
from data_prep.format.shard_writer import ShardWriter
from pretrain.config import DataConfig
from pretrain.data import (
    BatchPhase,
    BatchShape,
    Loader,
    MixturePosition,
    Position,
)
from pretrain.data.mixture import Mixture
from pretrain.data.stream import RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import (
    MaskedTokens,
    Replacement,
    TokenUnits,
    Vocabulary,
)

SIZES = (10**9, 10**10, 10**11, 10**12)  # tokens
MEAN_DOCUMENT = 500  # tokens
VOCABULARY = 30_522
SPECIALS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
SEED, SEQ_LEN, ROWS = 7, 512, 128
WINDOW_BLOCKS = DataConfig.model_fields["window_blocks"].default
PLACES = {"step 1": 0.0, "the middle": 0.5}  # as a share of the epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="tokens")
    parser.add_argument("--rounds", type=int, default=5, help="the best counts")
    parser.add_argument("--folder", type=Path, help="where the data sets are made (on disk; removed in the end)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/planning.md")
    args = parser.parse_args()
    load = warn_if_busy()
    lines = []
    with tempfile.TemporaryDirectory(prefix="planning-", dir=args.folder) as folder:
        shard = write_shard(Path(folder) / "one")
        for size in args.sizes:
            data = Path(folder) / "data"
            manifest = write_data_set(Path(folder) / "one", shard, int(size), data)
            for place, share in PLACES.items():
                lines.append(row_of(manifest, place, [measured(data, share) for _ in range(args.rounds)]))
                print(lines[-1], flush=True)
            shutil.rmtree(data)
    report = report_of(lines, args.rounds) + conditions("planning.py", ("numpy",), load)
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def write_shard(folder: Path) -> ShardInfo:
    """A full shard of random tokens in documents of MEAN_DOCUMENT on average; what comes after it is removed."""
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    with ShardWriter(folder, 0, np.dtype("<u2")) as writer:
        while not writer.shards:  # it closes when the next is begun
            lengths = 1 + rng.geometric(1 / MEAN_DOCUMENT, 1000)
            writer.add(rng.integers(1000, VOCABULARY, int(lengths.sum()), dtype=np.uint16), lengths)
    for extra in writer.shards[1:]:
        for name in (extra.name, extra.index_name):
            (folder / name).unlink()
    return writer.shards[0]


def write_data_set(one: Path, shard: ShardInfo, tokens: int, folder: Path) -> Manifest:
    """A data set of at least `tokens` tokens, all of whose shards are `shard`."""
    shards = [replace(shard, name=shard_name(task, 0)) for task in range(-(-tokens // shard.tokens))]
    (folder / "shards").mkdir(parents=True)
    for link in shards:
        os.link(one / shard.name, folder / "shards" / link.name)
        os.link(one / index_name(shard.name), folder / "shards" / index_name(link.name))
    _, table, _ = read_index((one / index_name(shard.name)).read_bytes())
    tokenizer = TokenizerInfo(hashlib.sha256().hexdigest(), {}, VOCABULARY, SPECIALS, sorted(SPECIALS.values()), "##")
    manifest = Manifest(
        FORMAT,
        FORMAT_VERSION,
        fingerprint(tokenizer.sha256, np.dtype("<u2"), itertools.repeat(table, len(shards))),
        tokenizer,
        "uint16",
        DataSetTotals(*(sum(getattr(link, name) for link in shards) for name in ("documents", "tokens", "blocks"))),
        shards,
        [],
    )
    write_json(folder / "manifest.json", asdict(manifest))
    return manifest


def measured(data: Path, share: float) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    code = f"from benchmarks.planning import first_batch; first_batch({str(data)!r}, {share})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the first batch of {data.name} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def first_batch(data: str, share: float) -> None:
    """Print seconds of opening and of the first batch, and how far resident memory grew in them, in MB."""
    resident = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begin = time.perf_counter()
    dataset = Dataset(data)
    opened = time.perf_counter()
    batches(dataset, share)
    end = time.perf_counter()
    print(json.dumps({"open": opened - begin, "batch": end - opened, "peak": status("VmHWM") - resident}))


def batches(dataset: Dataset, share: float) -> None:
    """Build the batch at a share of the first epoch. All that knows the stream's interface is here."""
    vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
    stream = RowStream(BlockReader(dataset), SEED, WINDOW_BLOCKS, "best_fit")
    masking = MaskedTokens(vocabulary, [(TokenUnits(), 1)], 0.15, Replacement(), SEED, "train")
    stages = [BatchPhase(0, SEQ_LEN, BatchShape(1, 1, ROWS))]
    loader = Loader(Mixture([stream], [1.0], SEED), stages, vocabulary, masking, lambda _: 0.15, 0)
    window = int(share * stream.n_windows)
    row = 10_000 if window else 0  # of the 32,768 that a window has at least: within it, too
    (batch,) = loader.step(0, MixturePosition(0, (Position(0, window, row),))).batches
    if batch.n_tokens < 0.9 * ROWS * SEQ_LEN:
        raise UserError(f"the batch holds {batch.n_tokens} tokens, too few")
    loader.close()


def status(name: str) -> float:
    """A figure of this process's memory, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(name)


def row_of(manifest: Manifest, place: str, found: list[dict[str, float]]) -> str:
    best = min(found, key=lambda one: one["open"] + one["batch"])
    cells = [f"{manifest.totals.tokens:.1e}", f"{len(manifest.shards):,}", f"{manifest.totals.blocks:,}", place]
    cells += [f"{best['open']:.3f}", f"{best['batch']:.3f}", f"{best['open'] + best['batch']:.3f}"]
    return f"| {' | '.join(cells)} | {max(one['peak'] for one in found):,.0f} |"


def report_of(lines: list[str], rounds: int) -> str:
    table = "\n".join(lines)
    return f"""# The first batch of large data sets

Seconds from opening a data set to its first batch ({ROWS} rows of {SEQ_LEN}, masked), and by how much resident
memory grew to its peak in that time. Imports are done before. Best time and largest growth of {rounds}, each in a
process of its own, files in page cache. Windows of {WINDOW_BLOCKS} blocks; documents of {MEAN_DOCUMENT} tokens on
average. The shards are links to one, in folders that list them all.

| tokens | shards | blocks | at | opening | first batch | together | memory, MB |
|---:|---:|---:|---|---:|---:|---:|---:|
{table}

"""


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
