"""Run folders for the report, written without training, with all kinds of events."""

import json
from pathlib import Path
from typing import Any

import yaml

from pretrain.run import Entry
from tests.support.runs import tiny_config

SECONDS, TOKENS = 2.0, 900  # of a step; its batch has 1024 slots
BATCH = {"rows": 8, "seq_len": 128}
START = 1_700_000_000.0


def step_line(step: int, time: float, **others: float) -> bytes:
    metrics = {
        "train/loss": 8 / step**0.2,
        "train/learning_rate": 1e-3,
        "train/grad_norm": 1.0,
        "speed/tokens_per_second": TOKENS / SECONDS,
        "speed/step_seconds": SECONDS,
        "speed/data_wait": 0.25,
    }
    return Entry(step, time, metrics | others, BATCH).to_line()


def line(step: int, time: float, metrics: dict[str, float]) -> bytes:
    return Entry(step, time, metrics).to_line()


def eventful() -> list[bytes]:
    """Killed after step 20, resumed from 10 after 60 s, then a rollback from 25 to 22, up to 30."""
    time, lines = START, []
    for step in range(1, 21):
        lines.append(step_line(step, time := time + SECONDS, **({"train/skipped": 1.0} if step == 5 else {})))
        if step == 10:
            lines.append(line(step, time := time + 6, {"eval/loss": 6.0, "eval/seconds": 6.0}))
            lines.append(line(step, time := time + 3, {"checkpoint/seconds": 3.0}))
    time += 60
    for step in range(11, 26):
        lines.append(step_line(step, time := time + SECONDS, **({"train/spike": 1.0} if step == 25 else {})))
    lines.append(line(25, time, {"train/rollback_to": 22.0, "train/rows_left_out": 24.0}))
    time += 5
    return lines + [step_line(step, time := time + SECONDS) for step in range(23, 31)]


def write_run(run: Path, lines: list[bytes], **environment: Any) -> Path:
    """A run folder with this journal."""
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines))
    (run / "config.yaml").write_text(yaml.safe_dump(tiny_config(run / "data", run)))
    (run / "environment.json").write_text(json.dumps(environment or {"time": "2023-11-14T22:13:20+0000"}))
    status = {"state": "completed", "step": 30, "total_steps": 30, "reason": "all steps are done", "time": START}
    (run / "status.json").write_text(json.dumps(status | {"next_action": "export"}))
    return run


def prediction_lines(key: str, steps: list[int], text: int = 7) -> list[bytes]:
    """Two predictions in one document of five ordinary tokens, right ever more surely; ids from `text` on."""
    ids = [2, *range(text, text + 5), 3]
    seen = [2, text, 4, text + 2, 9, text + 4, 3]
    predictions = [{"place": 2, "label": text + 1, "kind": "mask"}, {"place": 4, "label": text + 3, "kind": "random"}]
    asked = {"key": key, "passages": [[{"slot": 0, "original": ids, "seen": seen, "predictions": predictions}]]}
    said = {"ids": [[text + 1, 9], [9, text + 3]], "probabilities": [[0.5, 0.1], [0.6, 0.2]], "right": [0.5, 0.2]}
    answers = [{"key": key, "step": step, "time": START} | said for step in steps]
    return [json.dumps(record).encode() + b"\n" for record in (asked, *answers)]
