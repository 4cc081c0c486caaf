"""`maskwright replay`: the exact batch of a step, or a one-line reason why it cannot be shown."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from pretrain.data import Batch, BatchRows
from pretrain.reporting import replay
from tests.support.datasets import make_dataset
from tests.support.in_process import app
from tests.support.run_folder import STEPS, make_run
from tests.support.runs import VOCAB_SIZE
from tests.support.wordpiece_set import WORDS, save_wordpiece

SEQ_LEN, ROWS = 32, 8


@dataclass(frozen=True)
class Run:
    path: Path
    steps: list[list[Batch]]


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    steps = make_run(data, path)
    save_wordpiece(WORDS[:5] + [f"w{id}" for id in range(5, VOCAB_SIZE)], path / "tokenizer")
    return Run(path, steps)


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """The run, to be damaged."""
    return Path(shutil.copytree(run.path, tmp_path / "copy"))


def command(*arguments: Any) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    return result.exit_code, result.output, result.exception


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_each_step_is_the_batch_that_was(run, step):
    found = replay(run.path, step)
    wanted = BatchRows.of(run.steps[step - 1])
    assert found.rows.difference(wanted) is None
    assert found.checksum == sum(batch.checksum() for batch in run.steps[step - 1])
    assert (found.step, found.metrics["train/loss"]) == (step, 7.5)


def refusal(run: Path, step: int = 3) -> str:
    with pytest.raises(UserError) as error:
        replay(run, step)
    return str(error.value)


def test_what_cannot_be_replayed_is_named(copy, run, data, tmp_path):
    assert "not a run folder" in refusal(tmp_path)
    assert refusal(copy, 9).endswith("has no step 9. Its steps are 1 to 6.")
    assert refusal(copy, 7).endswith("has no step 7. Its steps are 1 to 6.")  # evaluated, not trained
    (copy / "journal.jsonl").write_bytes(b"")
    assert refusal(copy, 2).endswith("has no step 2. It has none.")
    (copy / "journal.jsonl").unlink()
    assert "has no journal.jsonl" in refusal(copy)


def test_a_data_set_that_is_gone_or_changed_is_named(copy, data, tmp_path):
    config = (copy / "config.yaml").read_text()

    def refused(text: str) -> str:
        (copy / "config.yaml").write_text(text)
        return refusal(copy)

    def with_data(path: str) -> str:
        return refused(config.replace(str(data / "train"), path))

    assert with_data(f"{tmp_path}/gone").startswith(f"No data set at {tmp_path / 'gone'}. ")
    assert refused(config + "masking: {selection: {weights: gone}}\n").startswith("gone: no such weight list")
    assert with_data("data/gone").startswith("No data set at data/gone (working directory: ")
    other = make_dataset(tmp_path / "other", [range(5, 60)] * 40, VOCAB_SIZE)
    fingerprint = json.loads((data / "train" / "manifest.json").read_text())["fingerprint"]
    assert f"data.train (fingerprint) was {fingerprint[:12]} and is" in with_data(str(other.path))
    phases = "phases: [{name: a, steps: 2}, {name: b, steps: 22, data: {seq_len: 64}}]\n"
    assert "step 3 had 8 rows of 32 slots, and by config.yaml it has 8 of 64" in refused(config + phases)
    assert "data.seq_len was 32 and is 64" in refused(config.replace("seq_len: 32", "seq_len: 64"))
    for manifest in (copy / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    assert "its settings were others at that step" in refusal(copy)


def test_the_journal_s_checksum_is_compared(copy):
    checksum = replay(copy, 3).checksum
    code, output, _ = command(copy, "--step", 3)
    assert code == 0
    assert f"checksum {checksum} as in the journal" in output
    journal = (copy / "journal.jsonl").read_text()
    for rate in ("0.9", "9223372036854775808"):
        (copy / "journal.jsonl").write_text(re.sub(r'"mask_rate":[0-9.]+', f'"mask_rate":{rate}', journal))
        assert f"mask_rate is {float(rate):g}, not from 0 to 0." in refusal(copy)
    (copy / "journal.jsonl").write_text(journal.replace(f'"checksum":{checksum}', f'"checksum":{checksum + 1}'))
    code, _, error = command(copy, "--step", 3)
    assert code == 1
    assert f"step 3 has checksum {checksum}, and the journal has {checksum + 1}" in str(error)
    assert "config.yaml or the version" in str(error)
    now, replaced = f'"checksum":{checksum},"replaced":0', f'"checksum":{checksum + 1},"replaced":9'
    (copy / "journal.jsonl").write_text(journal.replace(now, replaced))
    assert "9 of its tokens replaced damaged ones, and now 0 do" in str(command(copy, "--step", 3)[2])


def test_rows_are_shown(run, data):
    code, output, _ = command(run.path, "--step", 2, "--rows", 3)
    assert code == 0
    assert f"{run.path}, step 2, loss 7.5000, from {data.name} epoch 0, window 0, row 8; checksum " in output
    assert "⟦word⟧ the model sees [MASK]" in output
    rows = [line for line in output.splitlines() if line.startswith("row ")]
    assert [row.split(":")[0] for row in rows] == ["row 0", "row 1", "row 2"]
    assert "5 more rows; --rows 8 shows all" in output
    assert "⟦w" in output
    assert "\x1b" not in output


def test_json_has_the_ids(run, copy):
    code, output, _ = command(run.path, "--step", 2, "--json")
    assert code == 0
    rows = [json.loads(line) for line in output.splitlines()]
    assert [row["row"] for row in rows] == list(range(ROWS))
    wanted = BatchRows.of(run.steps[1])
    for number, row in enumerate(rows):
        seen = [id for document in row["documents"] for id in document["seen"]]
        assert seen == wanted.seen[number][: len(seen)].tolist()
        assert (wanted.seen[number][len(seen) :] == 0).all()
        for document in row["documents"]:
            ids = document["original"]
            assert all(ids[p["place"]] == p["label"] for p in document["predictions"])
            bare = document["text"].replace("⟦", "").replace("⟧", "").replace("=", "").split()
            assert [word.split("→")[0] for word in bare] == [f"w{id}" for id in ids[1:-1]]
    shutil.rmtree(copy / "tokenizer")
    assert json.loads(command(copy, "--step", 2, "--json")[1].splitlines()[0])["documents"][0]["text"] is None
    assert "--json shows the token ids" in str(command(copy, "--step", 2)[2])


def test_two_runs_are_compared(run, data, tmp_path):
    make_run(data, tmp_path / "same", train__micro_batch_size=1)
    make_run(data, tmp_path / "masks", masking__rate=0.3)
    make_run(data, tmp_path / "seed", run__seed=8)
    code, output, _ = command(run.path, "--step", 3, "--diff", tmp_path / "same")
    assert (code, output) == (0, f"step 3: {run.path} and {tmp_path / 'same'} saw the same 8 rows, bit for bit\n")
    for name, what in (("masks", "row 0 holds the same documents under other masks"), ("seed", "other documents")):
        code, output, _ = command(run.path, "--step", 3, "--diff", tmp_path / name)
        assert code == 1
        assert what in output
    code, output, _ = command(run.path, "--step", 3, "--diff", tmp_path / "seed", "--json")
    assert (code, json.loads(output)["same"]) == (1, False)


def test_a_causal_run_is_replayed(run, data, tmp_path):
    make_run(data, tmp_path / "causal", objective="clm")
    shutil.copytree(run.path / "tokenizer", tmp_path / "causal" / "tokenizer")
    _, output, _ = command(tmp_path / "causal", "--step", 3)
    assert "every token but special ones is predicted from those before it" in output
    assert "⟦" not in output
    code, output, _ = command(tmp_path / "causal", "--step", 3, "--diff", run.path)
    assert code == 1
    assert "row 0 holds the same documents under other masks" in output
