"""A tracked run without training: `python -m tests.support.tracked_process RUN URI FIRST LAST`."""

import sys
import time
from pathlib import Path

from pretrain.run import Journal
from pretrain.tracking import RunRecord, Tracker


def main(run: Path, uri: str, first: int, last: int) -> None:
    """Steps `first` to `last`; then close in at most two seconds, and print how long that took and when it was over."""
    record = RunRecord(uri, "demo", "first", {}, {}, artifacts=["config.yaml"])
    tracker = Tracker(run, record, seconds_between_sends=0.01)
    tracker.start()
    journal = Journal(run / "journal.jsonl")
    for step in range(first, last + 1):
        journal.append(step, {"train/loss": 1 / step, "train/learning_rate": step / 7})
        time.sleep(0.002)
    started = time.monotonic()
    tracker.close(2.0, "FAILED")
    print(time.monotonic() - started, time.time())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
