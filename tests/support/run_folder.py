"""A run folder as after training: config, journal, environment, and the manifest of a checkpoint."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config_files import load_config
from pretrain.data import Batch, BatchStage, Loader, Sources
from pretrain.run import Journal, RunFolder
from tests.support.runs import tiny_config

STEPS, PROCESSES = 6, 2


def make_run(data: Path, run: Path, **overrides: Any) -> list[list[Batch]]:
    """Make RUN, with a journal of STEPS steps; the micro-batches of each step, rank after rank."""
    folder = RunFolder(run)
    folder.create()
    folder.config.write_text(yaml.safe_dump(tiny_config(data, run, **overrides)))
    folder.environment.write_text(json.dumps({"processes": PROCESSES}))
    config = load_config(folder.config)
    sources = Sources.open(config)
    loaders = [
        Loader.for_training(config, sources, BatchStage.of_run(config, PROCESSES), rank) for rank in range(PROCESSES)
    ]
    journal, position, found = Journal(folder.journal), loaders[0].mixture.start(), []
    for number in range(1, STEPS + 1):
        steps = [loader.step(number - 1, position) for loader in loaders]
        found.append([batch for step in steps for batch in step.batches])
        checksum = sum(batch.checksum() for batch in found[-1])
        record = {
            "position": asdict(position),
            "seq_len": config.data.seq_len,
            "rows": config.train.global_batch_size,
            "mask_rate": steps[0].mask_rate,
            "checksum": checksum,
            "replaced": 0,
            "settings": Identity.of(config, sources, number).batch_digest(),
        }
        journal.append(number, {"train/loss": 7.5}, record)
        position = steps[0].after
    journal.append(STEPS + 1, {"eval/loss": 7.0})
    journal.close()
    checkpoint = folder.checkpoints / "step-00000006"
    checkpoint.mkdir()
    weights = {"weights": {"bytes": 0, "xxh3_128": "0" * 32}}  # not read
    state = {"identity": Identity.of(config, sources, STEPS).settings}
    Checkpoint(checkpoint, STEPS, state, weights).write()
    return found
