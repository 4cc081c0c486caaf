"""`maskwright audit --chain`: a clean run passes, and each kind of change is named, from the text to the export."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation.hash_chain import Link, verify_chain
from pretrain import checkpoint
from pretrain.run import chained
from tests.support import runs, text_data

STEPS = 12
PARTS = ["text inputs", "shards", "config", "batches", *["checkpoint"] * 2, *["export"] * 2]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with prepared data, a run with checkpoints of steps 8 and 12, and their exports."""
    folder = tmp_path_factory.mktemp("chain")
    data = text_data.text_data(folder)
    settings = {"train__steps": STEPS, "checkpoint": {"every_steps": 4, "keep": 2}, "eval": {"every_steps": 12}}
    config = runs.write_config(folder / "run.yaml", runs.tiny_config(data, folder / "run", **settings))
    assert runs.maskwright("train", config, "run.stop_after=6", "--procs", "1").returncode == 75
    text_data.make("train", config, "--procs", "1")  # the chain goes on after a resume
    text_data.make("export", folder / "run", "--all")
    return folder


@pytest.fixture
def run(place, tmp_path) -> Path:
    """A copy of the run, to change, that reads a copy of its data."""
    for name in ("run", "data"):
        shutil.copytree(place / name, tmp_path / name)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(place), str(tmp_path)))
    return tmp_path / "run"


def audit(run: Path, *options: str) -> tuple[int, str]:
    done = runs.maskwright("audit", run, "--chain", *options)
    return done.returncode, done.stdout + done.stderr


def links(run: Path) -> list[Link]:
    return list(verify_chain(run, 1, lambda done, total: None))


def broken(run: Path) -> list[str]:
    """The lines of the broken links."""
    return [str(link) for link in links(run) if link.is_broken]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change the JSON value of a file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit_batch(run: Path, step: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record of the batch of a step in the journal."""
    journal = run / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["step"] == step and "batch" in line:
            change(line["batch"])
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_clean_run_passes_and_is_not_changed(run):
    before = {path: path.stat().st_mtime_ns for path in run.parent.rglob("*")}
    code, said = audit(run)
    assert code == 0, said
    lines = said.splitlines()
    assert [line.split(f" {run.parent}")[0] for line in lines[:2]] == PARTS[:2]
    assert lines[0].endswith("data/train: ok (records of inputs: 1)")
    assert lines[1].endswith("data/train: ok")
    assert lines[2:] == [
        "config config.yaml: ok",
        "batches journal.jsonl: ok (12 of 12 steps have a hash)",
        *(f"{part} step-{step:08d}: ok" for part in ("checkpoint", "export") for step in (8, 12)),
    ]
    code, said = audit(run, "--json")
    found = json.loads(said)
    assert (code, [link["part"] for link in found], {link["state"] for link in found}) == (0, PARTS, {"ok"})
    assert {path: path.stat().st_mtime_ns for path in run.parent.rglob("*")} == before


def test_a_changed_record_of_a_text_input_is_named(run):
    edit(run.parent / "data/train/manifest.json", lambda it: it["sources"][0].update(digest="0" * 64))
    code, said = audit(run)
    assert code == 1
    assert "data/train: changed (manifest.json has other records of its inputs than when the run read it)" in said
    (line,) = broken(run)
    assert line.startswith("text inputs")


def test_a_changed_shard_is_named(run):
    (shard,) = (run.parent / "data/train/shards").glob("*.tar")
    flip(shard)
    (line,) = broken(run)
    assert line.startswith(f"shards {run.parent}/data/train: changed ({shard.name}: SHA-256 ")


def test_another_data_set_and_another_seed_are_named(run):
    shutil.rmtree(run.parent / "data/train")
    shutil.copytree(run.parent / "data/valid", run.parent / "data/train")
    inputs, config = broken(run)
    assert inputs.startswith("text inputs")
    assert "config config.yaml: changed (environment.json has the data fingerprint " in config
    assert "data.train (fingerprint) was " in config


def test_another_setting_is_named(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"run": config["run"] | {"seed": 8}}))
    assert broken(run) == ["config config.yaml: changed (run.seed was 7 and is 8)"]


def test_a_data_set_that_is_gone_is_not_found_and_the_rest_is_verified(run):
    shutil.rmtree(run.parent / "data")
    flip(run / "exports/step-00000008/model.safetensors")
    assert audit(run)[0] == 1
    found = links(run)
    assert [link.state for link in found] == [*["not found"] * 3, *["ok"] * 3, "changed", "ok"]
    assert "No data set at" in str(found[0])
    shutil.rmtree(run / "checkpoints")
    (run / "journal.jsonl").unlink()
    assert [link.state for link in links(run)[2:4]] == ["not found", "not found"]


def test_an_edited_batch_is_named(run):
    edit_batch(run, 5, lambda batch: batch.update(checksum=batch["checksum"] + 1))
    code, said = audit(run)
    assert code == 1
    assert "batches journal.jsonl: changed (the batch of step 5 has another hash than recorded)" in said
    assert len(broken(run)) == 1


def test_an_edited_batch_with_a_new_hash_is_named(run):
    edit_batch(run, 5, lambda batch: batch.update(rows=9, chain=chained("", batch | {"rows": 9})))
    assert broken(run)[0].startswith("batches journal.jsonl: changed (the batch of step 5 has")


def test_a_rewritten_chain_of_batches_does_not_fit_the_checkpoints(run):
    chain = ""

    def rewrite(batch: dict[str, Any]) -> None:
        nonlocal chain
        batch["checksum"] += 1
        chain = batch["chain"] = chained(chain, batch)

    for step in range(1, STEPS + 1):
        edit_batch(run, step, rewrite)
    assert broken(run) == [
        f"checkpoint step-{step:08d}: changed (the journal has other batches up to step {step})" for step in (8, 12)
    ]
    shutil.rmtree(run / "checkpoints/step-00000008")
    assert "export step-00000008: changed (it was made of other batches than the journal has up to step 8)" in broken(
        run
    )


def test_removed_steps_are_named(run):
    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if json.loads(line)["step"] != 6))
    assert broken(run) == ["batches journal.jsonl: changed (the batch of step 6 is missing, or its hash)"]


def test_a_flipped_bit_in_a_checkpoint_is_named(run):
    (file,) = (run / "checkpoints/step-00000008").rglob("mp_rank_00_model_states.pt")
    flip(file)
    (line,) = broken(run)
    assert line.startswith("checkpoint step-00000008: changed (")
    assert line.endswith(f"{file.name} differs from its checksum)")
    edit(run / "checkpoints/step-00000012/manifest.json", lambda it: it["state"].update(chain="0" * 64))
    assert "its checksum does not match its content" in broken(run)[1]


def test_a_changed_file_of_an_export_is_named(run):
    export = run / "exports/step-00000012"
    flip(export / "model.safetensors")
    (export / "tokenizer.json").unlink()
    assert broken(run) == [
        "export step-00000012: changed (model.safetensors differs from its SHA-256; tokenizer.json is missing)"
    ]
    (export / "maskwright_export.json").write_text("{}")
    assert "maskwright_export.json" in broken(run)[0]


def test_an_export_of_another_checkpoint_is_named(run):
    first, last = (run / f"exports/step-{step:08d}" for step in (8, 12))
    shutil.rmtree(last)
    shutil.copytree(first, last)
    assert broken(run) == ["export step-00000012: changed (it was made of step-00000008)"]
    edit(last / "maskwright_export.json", lambda it: it.update(step=12))
    assert broken(run) == ["export step-00000012: changed (it was made of another checkpoint than step-00000012)"]


def test_an_export_of_a_checkpoint_that_is_not_kept_passes(run):
    shutil.rmtree(run / "checkpoints/step-00000008")
    note = "export step-00000008: ok (step-00000008 is no longer kept; compared with the journal)"
    assert broken(run) == []
    assert note in [str(link) for link in links(run)]


def test_links_that_an_earlier_version_did_not_record_are_named(run):
    for step in (8, 12):
        path = run / f"checkpoints/step-{step:08d}"
        saved = checkpoint.read(path)
        del saved.state["chain"], saved.state["data"]["sources_sha256"]
        saved.write()
        (run / f"exports/step-{step:08d}/maskwright_export.json").unlink()
    for step in range(1, STEPS + 1):
        edit_batch(run, step, lambda batch: batch.pop("chain"))
    code, said = audit(run)
    assert code == 0, said
    states = [link.state for link in links(run)]
    assert states == ["not recorded", "ok", "ok", *["not recorded"] * 5]
    assert said.count("written by an earlier version of Maskwright") == 6
    flip(run / "checkpoints/step-00000008/manifest.json")
    assert len(broken(run)) == 1


def test_options_of_a_repeated_run_are_refused(run):
    for option in (["--steps", "1:2"], ["--procs", "1"], ["--tolerance", "0"]):
        code, said = audit(run, *option)
        assert (code, said.strip()) == (
            1,
            f"error: {option[0]} is not used with --chain, which repeats no steps. Remove one of them.",
        )


def test_a_run_from_the_checkpoint_of_another_run_begins_a_chain(place, tmp_path):
    start = {"resume": str(place / "run/checkpoints/step-00000008"), "trust_checkpoint": True}
    config = runs.tiny_config(place / "data", tmp_path / "run", train__steps=STEPS, eval={"every_steps": 12})
    config["run"] |= start
    text_data.make("train", runs.write_config(tmp_path / "run.yaml", config), "--procs", "1")
    found = links(tmp_path / "run")
    assert [str(link) for link in found if link.is_broken] == []
    assert str(found[3]) == "batches journal.jsonl: ok (4 of 4 steps have a hash)"
