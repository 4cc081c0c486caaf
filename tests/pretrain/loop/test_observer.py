"""A report from outside: one class, which a run gets with the start of its rank."""

import json
import sys
from pathlib import Path
from typing import Any

from pretrain.run import JournalReader
from tests.support import runs
from tests.support.ranks import run_ranks


class LossFile:
    """Writes the loss of each step to a file, and a last line when the run has ended."""

    def __init__(self, path: Path):
        self._file = path.open("w")

    def record(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        if batch:
            print(json.dumps([step, metrics["train/loss"], batch["rows"]]), file=self._file)

    def close(self) -> None:
        print("end", file=self._file)
        self._file.close()


def test_an_observer_sees_each_step_of_a_run_and_its_end(tmp_path):
    data, run, report = runs.tiny_data(tmp_path), tmp_path / "run", tmp_path / "losses.txt"
    settings = {"train__steps": 6, "eval__every_steps": 3, "track__uri": "none"}
    config = runs.write_config(tmp_path / "c.yaml", runs.tiny_config(data, run, **settings))
    run_ranks(__name__, 1, str(report), "--config", str(config))
    *lines, last = report.read_text().splitlines()
    losses = runs.losses(run)
    assert [json.loads(line) for line in lines] == [[step, losses[step], 8] for step in range(1, 7)]
    assert last == "end"
    assert "eval/loss" in JournalReader(run / "journal.jsonl").entries()[-1].metrics


if __name__ == "__main__":  # a rank of the run
    from pretrain.train import main

    sys.exit(main([LossFile(Path(sys.argv.pop(1)))]))
