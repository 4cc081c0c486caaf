"""The report of a run: restarts, time, samples, config; values never become markup, and damaged ones are left out."""

import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from pretrain.reporting import collect, write_page
from pretrain.reporting.curve_charts import BUCKETS, axes_of, charts_of
from pretrain.reporting.event_timeline import Start, breaks_of, speeds, time_spent
from pretrain.reporting.html_page import page
from pretrain.reporting.page_data import config_rows, read_config
from pretrain.reporting.prediction_table import predictions_of
from pretrain.run import Entry, JournalTable
from tests.support.in_process import app
from tests.support.report_runs import SECONDS, START, TOKENS, eventful, line, prediction_lines, step_line, write_run

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)> & {{script}} \u2028 "\x1b[31m'


def measured(lines):
    return JournalTable.of(Entry.from_line(text) for text in lines)


def test_restarts_and_rollbacks_are_told_apart():
    restart, rollback = breaks_of(measured(eventful()), [])
    assert (restart.kind, restart.after_step, restart.reached) == ("restart", 10, 20)
    assert restart.pause == pytest.approx(60)
    assert restart.repeated == pytest.approx(10 * SECONDS)
    assert (rollback.kind, rollback.after_step, rollback.reached) == ("rollback", 22, 25)
    assert rollback.pause == pytest.approx(5)
    assert rollback.repeated == pytest.approx(3 * SECONDS)
    assert len(breaks_of(measured(eventful()), [Start(0, START), Start(10, START + 110)])) == 2, "each start once"


def test_each_step_that_was_lost_is_counted_at_the_break_that_lost_it():
    steps = [*range(1, 11), *range(8, 13), *range(5, 15)]
    first, second = breaks_of(measured([step_line(step, START + n) for n, step in enumerate(steps)]), [])
    assert (first.reached, first.after_step, first.repeated) == (10, 7, 3 * SECONDS)
    assert (second.reached, second.after_step, second.repeated) == (12, 4, (3 + 5) * SECONDS)


def test_a_restart_that_lost_no_step_is_known_from_the_starts():
    lines = [step_line(step, START + 2 * step + (500 if step > 4 else 0)) for step in range(1, 9)]
    assert breaks_of(measured(lines), [Start(0, START)]) == []
    (found,) = breaks_of(measured(lines), [Start(0, START), Start(4, START + 508)])
    assert (found.kind, found.after_step, found.reached, found.repeated) == ("restart", 4, 4, 0)
    assert found.pause == pytest.approx(500)


def test_time_is_shared_out_without_rest():
    run = measured(eventful())
    spent = time_spent(run, breaks_of(run, []), [])
    wanted = {"training": 30 * SECONDS * 0.75, "waiting for data": 30 * SECONDS * 0.25, "evaluation": 6}
    wanted |= {"checkpoints": 3, "repeated steps": 13 * SECONDS, "between starts": 65}
    assert spent == pytest.approx(wanted | {"before the first step": 0, "elsewhere": 0})
    speed = speeds(run, spent)
    assert speed["tokens"] == pytest.approx(30 * TOKENS)
    assert speed["tokens_per_second"] == pytest.approx(TOKENS / SECONDS)
    assert speed["padding"] == pytest.approx(1 - TOKENS / 1024)
    assert speed["goodput"] == pytest.approx(60 / (60 + 6 + 3 + 26 + 65))


def test_goodput_is_of_all_time_since_the_first_start():
    run = measured(eventful())
    starts = [Start(0, START - 40), Start(10, START + 110)]
    spent = time_spent(run, breaks_of(run, starts), starts)
    assert (spent["before the first step"], spent["elsewhere"]) == pytest.approx((40, 0))
    assert speeds(run, spent)["goodput"] == pytest.approx(60 / (60 + 6 + 3 + 26 + 65 + 40))
    for forgotten in ([Start(10, START - 40)], [Start(0, None)], [Start(0, START + 40)]):  # or a clock set back
        assert time_spent(run, breaks_of(run, []), forgotten)["before the first step"] == 0
    back = measured(step_line(step, START - 1000 * step) for step in range(1, 9))
    assert all(seconds >= 0 for seconds in time_spent(back, [], []).values())


def test_axes_count_what_was_done_again_once():
    axes = axes_of(measured(eventful()))
    assert axes["step"][-1] == 30
    assert axes["tokens"][-1] == pytest.approx(30 * TOKENS)
    assert axes["hours"][-1] == pytest.approx(30 * SECONDS / 3600, rel=1e-4)
    assert axes["step"][0] == axes["tokens"][0] == axes["hours"][0] == 0


def test_long_runs_give_short_curves_with_their_peaks():
    lines = [step_line(step, START + step) for step in range(1, 5001)]
    lines[3332] = step_line(3333, START + 3333, **{"train/grad_norm": 1e4})
    charts = {chart["title"]: chart["lines"] for chart in charts_of(measured(lines))}
    norm = charts["Gradient norm"][0]
    assert len(norm["x"]) <= 2 * BUCKETS + 2
    assert norm["y"][norm["x"].index(3333)] == 1e4
    assert charts.keys() == {"Loss", "Learning rate", "Gradient norm", "Real tokens a second", "Waiting for data"}


def test_the_page_of_an_eventful_run(tmp_path):
    found = collect(write_run(tmp_path / "run", eventful()), tmp_path / "page.html")
    marks = {kind: [mark["step"] for mark in marks] for kind, marks in found["marks"].items()}
    assert marks == {
        "restart": [10], "rollback": [22], "skipped": [5], "spike": [25], "checkpoint": [10],
        "failed save": [], "phase": [],
    }  # fmt: skip
    assert found["notices"] == []
    assert [name for name, *_ in found["headline"]] == [
        "training loss, moving average", "held-out loss", "real tokens seen", "real tokens/s, mean of all steps",
        "goodput: time in steps that count",
    ]  # fmt: skip
    averaged = next(line["y"] for line in found["charts"][0]["lines"] if line["label"] == "training, moving average")
    assert averaged[-1] == found["headline"][0][1], "there is one training loss, rounded once"


def test_the_first_line_is_the_result_of_the_run(tmp_path):
    run = write_run(tmp_path / "run", eventful(), unigram_loss=7.25)
    assert collect(run, tmp_path / "page.html")["result"] == {
        "name": "Held-out", "loss": 6.0, "unigram": 7.25, "begun": START, "seconds": pytest.approx(160),
    }  # fmt: skip
    lines = [text for text in eventful() if b"eval/loss" not in text]
    result = collect(write_run(tmp_path / "other", lines), tmp_path / "page.html")["result"]
    assert (result["name"], result["unigram"]) == ("Training", None)


def test_a_run_that_is_exported_has_no_next_action(tmp_path):
    run = write_run(tmp_path / "run", eventful())
    assert collect(run, tmp_path / "page.html")["status"]["next_action"] == "export"
    (run / "exports" / "step-00000010").mkdir(parents=True)
    (run / "exports" / ".logged-model.tmp").mkdir()
    found = collect(run, tmp_path / "page.html")
    assert found["status"]["next_action"] == "export", "that is another step"
    assert [export["name"] for export in found["exports"]] == ["step-00000010"]
    (run / "exports" / "step-00000030").mkdir()
    assert collect(run, tmp_path / "page.html")["status"]["next_action"] == "none"


class Elements(HTMLParser):
    """Names of the elements of a page, with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_text_of_a_run_cannot_become_markup(tmp_path):
    run = write_run(tmp_path / "run", eventful(), git_commit=HOSTILE, command=HOSTILE, hosts=[{"host": HOSTILE}])
    (run / "status.json").write_text(json.dumps({
        "state": "failed", "step": 1, "total_steps": 2, "reason": HOSTILE, "next_action": HOSTILE, "time": 0.0,
    }))  # fmt: skip
    (run / "config.yaml").write_text(json.dumps({"run": {"dir": HOSTILE}, HOSTILE: HOSTILE}))
    (run / "exports/javascript:alert(1)").mkdir(parents=True)
    (run / "predictions.jsonl").write_bytes(b"".join(prediction_lines("k", [1, 2])))
    report = collect(run, run / "report.html") | {"name": HOSTILE}
    report["predictions"]["passages"][0].append(HOSTILE)
    report["predictions"]["asked"][0]["label"] = HOSTILE
    text = page(report)
    tags = [tag for tag, _ in Elements(text).found]
    assert tags.count("script") == 2
    assert "img" not in tags
    embedded = re.search(r'id="report">(.*?)</script>', text, re.S)[1]
    assert not set("<>&\u2028") & set(embedded)
    assert json.loads(embedded)["name"] == HOSTILE
    assert f"<title>{html.escape(HOSTILE)}" in text
    assert all(export["link"].startswith("./") for export in report["exports"])
    assert "\x1b" not in report["status"]["reason"]


def test_the_page_needs_nothing_else(tmp_path):
    text = page(collect(write_run(tmp_path / "run", eventful()), tmp_path / "page.html"))
    elements = Elements(text).found
    assert not [tag for tag, attributes in elements if "src" in attributes or "href" in attributes]
    (policy,) = [a["content"] for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|innerHTML|eval\(", text)


@pytest.mark.parametrize("missing", ["journal.jsonl", "config.yaml", "environment.json", "status.json"])
def test_what_is_missing_is_said(tmp_path, missing):
    run = write_run(tmp_path / "run", eventful())
    (run / missing).unlink()
    found = collect(run, tmp_path / "page.html")
    said = " ".join([*found["notices"], found["status"]["reason"]])
    assert ("not recorded any step" if missing == "journal.jsonl" else missing) in said


def test_torn_lines_of_the_journal_are_said(tmp_path):
    run = write_run(tmp_path / "run", [*eventful(), b'{"step": 31, "tim\n', line(30, START, {"eval/loss": 5.0})])
    assert collect(run, tmp_path / "p.html")["notices"] == ["Damaged lines of journal.jsonl are left out: 1."]


def test_a_run_without_steps_is_one_sentence(tmp_path):
    run = write_run(tmp_path / "run", [])
    found = collect(run, tmp_path / "page.html")
    assert found["notices"] == ["This run has not recorded any step yet."]
    assert (found["charts"], found["spent"], found["headline"], found["predictions"]) == ([], {}, [], None)
    assert page(found)
    (run / "journal.jsonl").write_bytes(step_line(1, START, **{"train/loss": float("nan")}))
    found = collect(run, tmp_path / "page.html")
    assert "Loss" not in [chart["title"] for chart in found["charts"]]
    assert "NaN" not in page(found)


def test_settings_that_differ_from_the_defaults(tmp_path):
    (tmp_path / "config.yaml").write_text("run: {dir: x, seed: 7}\ntrain: {steps: 5, precision: bf16}\n")
    rows = {row["key"]: row for row in config_rows(read_config(tmp_path / "config.yaml"))}
    assert rows["run.seed"] == {"key": "run.seed", "value": "7", "default": "0", "changed": True}
    assert rows["train.steps"]["changed"]
    assert rows["train.steps"]["default"] is None
    assert not rows["train.precision"]["changed"]


def test_predictions_are_those_of_the_last_passages_and_the_later_lines(tmp_path):
    path = tmp_path / "predictions.jsonl"
    again = prediction_lines("new", [2, 4])
    path.write_bytes(b"".join([*prediction_lines("old", [2, 3], text=20), *again[:2], b'{"key": "ne\n', *again]))
    found = predictions_of(path, tmp_path)
    assert found["steps"] == [2, 4]
    assert found["passages"] == [["<7> ", 0, " <9> ", 1, " <11>"]]
    asked = [("<8>", "<4>", "mask"), ("<10>", "<9>", "random")]
    assert [(one["label"], one["seen"], one["kind"]) for one in found["asked"]] == asked
    assert found["answers"][0] == [[["<8>", "<9>"], [0.5, 0.1], 0.5], [["<9>", "<10>"], [0.6, 0.2], 0.2]]


def test_many_evaluations_are_thinned(tmp_path):
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(b"".join(prediction_lines("k", list(range(1, 8_001)))))
    path.write_bytes(path.read_bytes() + prediction_lines("torn", [9_000])[1])  # answers to unknown passages
    found = predictions_of(path, tmp_path)
    assert len(found["steps"]) == len(found["answers"]) <= 6000
    assert (found["steps"][0], found["steps"][-1]) == (1, 8_000)


def test_the_command(tmp_path):
    run = write_run(tmp_path / "run", eventful())
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    result = CliRunner().invoke(app, ["report", str(run), "--json"])
    assert json.loads(result.output)["status"]["state"] == "completed"
    words = ["report", str(run), "--out", str(tmp_path / "no/such/page.html")]
    with pytest.raises(UserError, match="Cannot write to"):
        CliRunner().invoke(app, words, catch_exceptions=False)


DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000


@pytest.mark.parametrize(
    "text",
    [
        "pipe",
        DEEP,
        LONG,
        "a: 2020-01-01",
        "[1]: x",
        f"a: 0x{LONG}",
        "a: !!binary aGk=",
        "a: .nan",
        "[1]",
        "a: {b: &x [*x]}",
    ],
    ids=lambda text: text[:15],
)
def test_a_damaged_config_is_left_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    os.mkfifo(path) if text == "pipe" else path.write_text(text)
    assert read_config(path) == {}


@pytest.mark.parametrize("phases", ["5", "[5]", "[{}]", "[{steps: x}]"])
def test_damaged_phases_are_left_out(tmp_path: Path, phases: str) -> None:
    run = write_run(tmp_path / "run", eventful())
    with (run / "config.yaml").open("a") as file:
        file.write(f"\nphases: {phases}\n")
    assert collect(run, tmp_path / "page.html")["marks"]["phase"] == []


WRONG: list[Any] = [None, 7, -1, "x", True, [1], ["x"], {"x": 1}, [{"host": 5, "gpus": [7], "ranks": 3}], 1e308]
KEYS = ["packages", "hosts", "slurm", "data", "git_commit", "parameters", "earlier_starts", "after_step", "time"]


@pytest.mark.parametrize("key", KEYS)
def test_an_environment_of_wrong_types_is_left_out(tmp_path: Path, key: str) -> None:
    run = write_run(tmp_path / "run", eventful())
    for value in WRONG:
        (run / "environment.json").write_text(json.dumps({key: value}))
        json.dumps(collect(run, tmp_path / "page.html"))


@pytest.mark.parametrize("text", ["pipe", DEEP, LONG, f'{{"parameters": {LONG}}}'], ids=lambda text: text[:15])
@pytest.mark.parametrize("name", ["environment.json", "predictions.jsonl"])
def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path, name: str, text: str) -> None:
    run = write_run(tmp_path / "run", eventful())
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name) if text == "pipe" else (run / name).write_text(text)
    json.dumps(collect(run, tmp_path / "page.html"))


@pytest.mark.parametrize(
    "change",
    [
        {"step": "3"},
        {"step": True},
        {"ids": 7},
        {"ids": [["x", 9], [9, 8]]},
        {"ids": [[1], [9, 8]]},
        {"probabilities": [["x", 0.1], [0.6, 0.2]]},
        {"right": "x"},
        {"right": [0.5]},
        {"key": ["k"]},
        {"original": [2]},
        {"seen": "x"},
        {"predictions": [{"place": 99}]},
        {"slot": None},
    ],
    ids=str,
)
def test_passages_and_answers_of_wrong_types_are_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    asked, first, second = map(json.loads, prediction_lines("k", [2, 3]))
    of_answers = change.keys() <= second.keys()
    (second if of_answers else asked["passages"][0][0]).update(change)
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (asked, first, second)))
    found = predictions_of(path, tmp_path)
    assert (found and found["steps"]) == ([2] if of_answers else None)


def test_whole_numbers_above_64_bits_are_shown_as_floats(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", eventful())
    asked, first = prediction_lines("k", [2])
    large = json.loads(first) | {"probabilities": [[1 << 64, 0.1], [0.6, 0.2]], "right": [10**39, 0.5]}
    (run / "predictions.jsonl").write_bytes(asked + json.dumps(large).encode() + b"\n")
    content = collect(run, run / "report.html")
    write_page(content, run / "report.html")
    assert content["predictions"]["answers"][0][0][1:] == [[2.0**64, 0.1], 1e39]
