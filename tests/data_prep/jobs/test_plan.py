"""Preparation plan: cut inputs into tasks, grow without changes to old tasks, refuse other settings."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.cleaning import Cleaning
from data_prep.common.errors import UserError
from data_prep.jobs import PreparationSettings, plan_inputs
from data_prep.jobs.plan_inputs import cuts
from data_prep.jobs.preparation_plan import PreparationPlan, check_out, open_plan, read_plan, write_plan
from data_prep.sources import Examined, Options, SourceInput
from tests.support.datasets import tokenizer_info

EMPTY = PreparationPlan([], [], tokenizer_info(1000), PreparationSettings())


def found(*names: str, source: str = "") -> list[SourceInput]:
    return [SourceInput(source, f"/data/{name}", "jsonl") for name in names]


def examined(*sizes: int) -> list[Examined]:
    return [Examined(size, f"digest {size}", None) for size in sizes]


def extend(plan, inputs, examined, task_bytes=None) -> tuple[PreparationPlan, list[str]]:
    """The plan with these inputs, without groups, and their locations."""
    plan, locations, groups = plan_inputs.extend(plan, Path(), list(zip(inputs, examined, strict=True)), task_bytes)
    assert groups == []
    return plan, locations


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_byte_ranges_cover_a_file_and_are_balanced(size, task_bytes):
    ranges = cuts(Examined(size, "", None), task_bytes)
    ends = [byte for first, last, _ in ranges for byte in (first, last)]
    assert ends == sorted(ends)
    assert sum(last - first for first, last, _ in ranges) == sum(parts for *_, parts in ranges) == size
    assert all(first == before[1] for before, (first, *_) in pairwise(ranges))
    lengths = {last - first for first, last, _ in ranges}
    assert not lengths or (max(lengths) <= task_bytes and max(lengths) - min(lengths) <= 1)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_units_are_grouped_in_order(units, task_bytes):
    ranges = cuts(Examined(sum(units), "", tuple(units)), task_bytes)
    assert [unit for first, last, _ in ranges for unit in range(first, last)] == list(range(len(units)))
    for first, last, size in ranges:
        assert size == sum(units[first:last])
        assert size <= task_bytes or last - first == 1


def test_a_plan_only_grows():
    plan, _ = extend(EMPTY, found("b", "c", "empty"), examined(200, 300, 0), task_bytes=100)
    assert [task.input for task in plan.tasks] == [0, 0, 1, 1, 1]
    grown, locations = extend(plan, found("a", "b", "c", "empty"), examined(150, 200, 300, 0), task_bytes=40)
    assert (grown.inputs[:3], grown.tasks[:5]) == (plan.inputs, plan.tasks)
    assert locations == ["/data/b", "/data/c", "/data/empty", "/data/a"]
    assert grown.tasks_of_inputs() == [range(2), range(2, 5), range(0), range(5, 9)]
    assert [grown.task_hash(task) for task in range(5)] == [plan.task_hash(task) for task in range(5)]
    assert len({grown.task_hash(task) for task in range(9)}) == 9
    moved, locations = extend(plan, found("x/b", "x/c", "x/empty"), examined(200, 300, 0))
    assert moved == plan
    assert locations == ["/data/x/b", "/data/x/c", "/data/x/empty"]


def test_equal_files_are_inputs_of_their_own():
    plan, _ = extend(EMPTY, found("a", "b"), examined(7, 7))
    assert len(plan.inputs) == 2
    assert extend(plan, found("a", "b"), examined(7, 7))[0] == plan
    assert len(extend(plan, found("a", "b", "c"), examined(7, 7, 7))[0].inputs) == 3


@pytest.mark.parametrize(
    "now", [(found("a"), examined(1)), (found("a", "b"), examined(1, 3)), (found("a", "b", source="x"), examined(1, 2))]
)
def test_an_input_that_is_gone_or_changed_is_refused(now):
    plan, _ = extend(EMPTY, found("a", "b"), examined(1, 2))
    with pytest.raises(UserError, match=r"The input [ab] that was prepared before has changed or is not given"):
        extend(plan, *now)


def test_names_do_not_tell_the_signature_of_a_url():
    urls = [SourceInput("", f"https://host/a/{name}.jsonl?Signature=secret", "jsonl") for name in "ab"]
    plan, locations = extend(EMPTY, urls, examined(1, 2))
    assert [one.name for one in plan.inputs] == ["a.jsonl", "b.jsonl"]
    assert locations == [one.location for one in urls]


def test_too_many_tasks_are_refused():
    with pytest.raises(UserError, match=r"Tasks of 0.001 MB would be 3,000,000; raise --task-mb to 0.01 or more"):
        extend(EMPTY, found("a"), examined(3_000_000_000), task_bytes=1000)
    assert len(extend(EMPTY, found("a"), examined(3_000_000_000), task_bytes=10_000_000)[0].tasks) == 300


def test_every_setting_is_kept_compared_and_in_the_hash(tmp_path):
    plan, _ = extend(EMPTY, found("a"), examined(10))
    (tmp_path / "prep").mkdir()
    write_plan(plan, tmp_path)
    assert read_plan(tmp_path) == plan == open_plan(tmp_path, plan.tokenizer, plan.settings)
    filtering = Cleaning(filters=("characters=3-",))
    others = {
        "--text-field text; the command has --text-field body": PreparationSettings(reading=Options(text_field="body")),
        "no --id-field; the command has --id-field id": PreparationSettings(reading=Options(id_field="id")),
        "no --wrong-field; the command has --wrong-field w": PreparationSettings(reading=Options(wrong_field="w")),
        "--separator blank; the command has --separator line": PreparationSettings(reading=Options(separator="line")),
        "no --filter; the command has --filter characters=3-": PreparationSettings(cleaning=filtering),
        "no --decontaminate files": PreparationSettings(evaluation_sha256="0"),
        "--deduplicate none; the command has --deduplicate exact": PreparationSettings(deduplicate="exact"),
        "--valid-fraction 0.0; the command has --valid-fraction 0.1": PreparationSettings(valid_fraction=0.1),
    }
    for name, settings in others.items():
        with pytest.raises(UserError, match=rf"was prepared with {name}\. Use the same, or another --out\."):
            open_plan(tmp_path, plan.tokenizer, settings)
        assert PreparationPlan(plan.inputs, plan.tasks, plan.tokenizer, settings).task_hash(0) != plan.task_hash(0)
    with pytest.raises(UserError, match="prepared with another --tokenizer and --deduplicate none; the command"):
        open_plan(tmp_path, tokenizer_info(1001), PreparationSettings(deduplicate="exact"))


def test_whose_folder_it_is(tmp_path):
    assert not check_out(tmp_path / "new")
    assert not check_out(tmp_path)
    (tmp_path / "prep").mkdir()
    for name in ("lock", ".place.json.host.7.tmp"):
        (tmp_path / "prep" / name).touch()
    assert not check_out(tmp_path)
    (tmp_path / "prep/mine.jsonl").touch()
    with pytest.raises(UserError, match=r"not empty \(it has prep/mine.jsonl\)"):
        check_out(tmp_path)
    (tmp_path / "prep/place.json").touch()
    (tmp_path / "tokenizer").mkdir()  # made after place.json and before the plan
    assert check_out(tmp_path)
    (tmp_path / "prep/place.json").unlink()
    (tmp_path / "prep/mine.jsonl").unlink()
    with pytest.raises(UserError, match=r"not empty \(it has tokenizer\)"):
        check_out(tmp_path)
