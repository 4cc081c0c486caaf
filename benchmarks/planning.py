"""The first batch of data sets of up to a trillion tokens, at the first step and in the middle: time and memory.

    python -m benchmarks.planning

Each data set is a real folder that lists all shards of its size. All shards are hard links to one of 256 MB, so they
need no more disk space. Every measurement runs in a new process: it opens the data set and builds a batch as training
does.
"""

import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT, call, memory, options, run, table, warn_if_busy, write_page
from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.format import Dataset, Manifest, ShardInfo, ShardWriter, TokenizerInfo
from data_prep.format.manifest import DataSetTotals, fingerprint
from data_prep.format.shard_format import FORMAT, FORMAT_VERSION, index_name, read_index, shard_name
from pretrain.config import DataConfig, MaskingConfig
from pretrain.data import BatchStage, Loader, MixturePosition
from pretrain.data.mixture import Mixture
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import MaskedTokens, Vocabulary

SIZES = (10**9, 10**10, 10**11, 10**12)  # tokens
MEAN_DOCUMENT = 500  # tokens
VOCABULARY = 30_522
SPECIALS = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
SEED, SEQ_LEN, ROWS = 7, 512, 128
WINDOW_BLOCKS = DataConfig.model_fields["window_blocks"].default
PLACES = {"step 1": 0.0, "the middle": 0.5}  # as a share of the epoch


def main() -> None:
    parser = options(__doc__, "planning")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="tokens")
    parser.add_argument("--rounds", type=int, default=5, help="the best counts")
    parser.add_argument("--folder", type=Path, help="where the data sets are made and removed again")
    args = parser.parse_args()
    warn_if_busy()
    lines = []
    with tempfile.TemporaryDirectory(prefix="planning-", dir=args.folder) as folder:
        shard = write_shard(Path(folder) / "one")
        for size in args.sizes:
            data = Path(folder) / "data"
            manifest = write_data_set(Path(folder) / "one", shard, int(size), data)
            for place, share in PLACES.items():
                lines.append(row_of(manifest, place, [measured(data, share) for _ in range(args.rounds)]))
            shutil.rmtree(data)
    write_page(args.out, page(lines, args.rounds), ("numpy",))


def write_shard(folder: Path) -> ShardInfo:
    """A full shard of random tokens, in documents of MEAN_DOCUMENT on average."""
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    with ShardWriter(folder, 0, np.dtype("<u2")) as writer:
        while not writer.shards:  # the first is closed when the next begins
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
    return json.loads(call([sys.executable, "-c", code], env=environment))


def first_batch(data: str, share: float) -> None:
    """Print the seconds of opening and of the first batch, and the growth of resident memory in MB."""
    resident = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    begin = time.perf_counter()
    dataset = Dataset(data)
    opened = time.perf_counter()
    batches(dataset, share)
    end = time.perf_counter()
    print(json.dumps({"open": opened - begin, "batch": end - opened, "peak": (memory("VmHWM") - resident) / 1e6}))


def batches(dataset: Dataset, share: float) -> None:
    """Build the batch at a share of the first epoch."""
    vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
    stream = RowStream(BlockReader(dataset), SEED, WINDOW_BLOCKS, "best_fit")
    masking = MaskedTokens(MaskingConfig(), vocabulary, SEED, "train")
    stages = [BatchStage(0, SEQ_LEN, 1, 1, ROWS)]
    loader = Loader(Mixture([stream], [[1.0]], SEED), stages, vocabulary, [masking], lambda _: 0.15, 0)
    window = int(share * stream.n_windows)
    row = 10_000 if window else 0  # a window has at least 32,768
    (batch,) = loader.step(0, MixturePosition(0, (Position(0, window, row),))).batches
    if batch.n_tokens < 0.9 * ROWS * SEQ_LEN:
        raise UserError(f"the batch holds {batch.n_tokens} tokens, too few")
    loader.close()


def row_of(manifest: Manifest, place: str, found: list[dict[str, float]]) -> list[str]:
    best = min(found, key=lambda one: one["open"] + one["batch"])
    cells = [f"{manifest.totals.tokens:.1e}", f"{len(manifest.shards):,}", f"{manifest.totals.blocks:,}", place]
    cells += [f"{best['open']:.3f}", f"{best['batch']:.3f}", f"{best['open'] + best['batch']:.3f}"]
    return [*cells, f"{max(one['peak'] for one in found):,.0f}"]


def page(lines: list[list[str]], rounds: int) -> str:
    header = ["tokens", "shards", "blocks", "at", "opening", "first batch", "together", "memory, MB"]
    return f"""# The first batch of large data sets

Seconds from opening a data set to its first batch ({ROWS} rows of {SEQ_LEN}, masked), without imports, and the growth
of resident memory to its peak in that time. Best time and largest growth of {rounds}, each in a new process, files in
page cache. Windows of {WINDOW_BLOCKS} blocks; documents of {MEAN_DOCUMENT} tokens on average. The shards are links to
one.

{table(header, *lines, left=0)}
"""


if __name__ == "__main__":
    run(main)
