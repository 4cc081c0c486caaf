"""Addresses in the folder of a plan: only those that the user named himself are used, or with --yes."""

import json

import pytest

from data_prep.jobs import plan_inputs
from tests.support.in_process import command, refused
from tests.support.prep import jsonl, texts, tree
from tests.support.web import serving


@pytest.fixture
def web(tmp_path):
    (tmp_path / "served").mkdir()
    for name in "ab":
        (tmp_path / f"served/{name}.jsonl").write_bytes(jsonl(texts(ord(name), 20)))
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture(autouse=True)
def of_victim(tmp_path, monkeypatch):
    """The user's own cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))  # no Slurm


def planned(tmp_path, tokenizer, *inputs):
    out = tmp_path / "out"
    named = [word for value in inputs for word in ("--input", value)]
    assert command("prep", "run", "--plan-only", *named, "--tokenizer", tokenizer, "--out", out).code == 0
    return out


def refusals(out):
    """What all commands say that would read the inputs."""
    commands = [("prep", "task", out, "0", "--workers", count) for count in "12"]
    said = [refused(*words) for words in (*commands, ("launch", "prep", out, "--dry-run"))]
    return {line.removeprefix("error: ").removeprefix("1 of 1 tasks failed, the first being 0: ") for line in said}


@pytest.mark.parametrize("named", ["{url}/x.jsonl", "hub:owner/name", "pair:{url}/a.txt,/b.txt", "zip://a::file:///b"])
def test_a_changed_address_is_not_used(tmp_path, tokenizer, web, named):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts(0, 20)))
    out = planned(tmp_path, tokenizer, tmp_path / "a.jsonl")
    assert not (tmp_path / "home").exists()  # no address, no record
    plan, place = json.loads((out / "prep/plan.json").read_text()), json.loads((out / "prep/place.json").read_text())
    plan["inputs"][0]["kind"] = named.partition(":")[0] if named.startswith(("hub", "pair")) else "jsonl"
    place |= {"locations": [named.format(url=web.url)], "cache": str(tmp_path / "stolen")}
    for name, value in (("plan", plan), ("place", place)):
        (out / f"prep/{name}.json").write_text(json.dumps(value))
    (said,) = refusals(out)
    assert f"and the cache folder {tmp_path}/stolen are known from {out} alone. Add --yes to read" in said
    assert not (tmp_path / "stolen").exists()
    assert not web.gets
    (out / "prep/place.json").write_text(json.dumps(place | {"locations": []}))
    (said,) = refusals(out)
    assert said.startswith(f"{out}/prep/place.json names 0 of the 1 inputs of the plan. Run `maskwright prep run")


def test_addresses_of_the_users_own_command_need_nothing(tmp_path, tokenizer, web, monkeypatch):
    """Also files that share a task; with --yes, addresses of somebody else are used."""
    monkeypatch.setattr(plan_inputs, "MAX_SINGLE", 1)
    cache = ("--cache", tmp_path / "cache")
    options = ("--tokenizer", tokenizer, *cache)
    out = tmp_path / "out"
    urls = [word for name in "ab" for word in ("--input", f"{web.url}/{name}.jsonl")]
    assert command("prep", "run", "--plan-only", *urls, *options, "--out", out).code == 0
    assert len(list((out / "prep/files").iterdir())) == 1
    script = command("launch", "prep", out, "--dry-run")
    assert (script.code, script.out.count(" --yes")) == (0, 1), script.err
    (tmp_path / "home").rename(tmp_path / "other")  # as for another user
    assert len(refusals(out)) == 1
    assert "Remove --yes" in refused("prep", "task", out, "--stage", "resolve", "--yes")
    assert command("launch", "prep", out, "--dry-run", "--yes").code == 0
    assert command("prep", "task", out, "0", "--workers", "1", "--yes").code == 0
    (out / "prep/tasks/00000.json").unlink()
    (tmp_path / "other").rename(tmp_path / "home")
    assert command("prep", "task", out, "0", "--workers", "1").code == 0
    assert command("prep", "merge", out, "--workers", "1").code == 0
    assert command("prep", "run", *urls, *options, "--out", tmp_path / "one", "--workers", "1").code == 0
    assert tree(out / "shards") == tree(tmp_path / "one/shards")
    listed = next((out / "prep/files").iterdir())
    listed.write_text(listed.read_text().replace("/a.jsonl", "/evil.jsonl"))
    (out / "prep/tasks/00000.json").unlink()
    assert all("/evil.jsonl and the cache" in said for said in refusals(out))
    assert not [path for path, _ in web.gets if "evil" in path]


def test_a_home_that_cannot_be_written(tmp_path, tokenizer, web):
    """prep run works, and a task asks for --yes."""
    (tmp_path / "home").write_text("no folder")
    options = ("--input", f"{web.url}/a.jsonl", "--tokenizer", tokenizer, "--cache", tmp_path / "cache")
    assert command("prep", "run", *options, "--out", tmp_path / "one", "--workers", "1").code == 0
    assert command("prep", "run", "--plan-only", *options, "--out", tmp_path / "out").code == 0
    assert len(refusals(tmp_path / "out")) == 1
