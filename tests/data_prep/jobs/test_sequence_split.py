"""Sequences in FASTA files: near-identical ones are never on both sides of the split."""

import random

import pytest

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.jobs import PreparationSettings
from data_prep.sources import Options
from data_prep.tokenizer import train_tokenizer
from tests.support.prep import prepare_files

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def families(count: int, members: int) -> dict[str, str]:
    """Random proteins, each with copies that differ in 3 of 300 residues, by a header that names the family."""
    rng = random.Random(0)
    found = {}
    for family in range(count):
        first = rng.choices(RESIDUES, k=300)
        for member in range(members):
            copy = list(first)
            for place in rng.sample(range(300), 3 if member else 0):
                copy[place] = rng.choice(RESIDUES)
            found[f"family{family}|{member}"] = "".join(copy)
    order = sorted(found, key=lambda name: rng.random())
    return {name: found[name] for name in order}


def families_of(folder) -> list[str]:
    dataset = Dataset(folder)
    names = [name for block in range(dataset.n_blocks) for name in dataset.ids(block) or ()]
    return [str(name).partition("|")[0] for name in names]


@pytest.mark.parametrize("deduplicate", ["exact", "near"])
def test_near_identical_sequences_are_on_one_side(tmp_path, deduplicate):
    sequences = families(60, 4)
    records = [f">{name}\n{text[:60]}\n{text[60:]}\n" for name, text in sequences.items()]
    for number in range(2):
        (tmp_path / f"{number}.fasta").write_text("".join(records[number::2]))
    train_tokenizer(sequences.values(), "characters", 100, tmp_path / "tokenizer")
    near = {"near_threshold": 0.5, "near_unit": "characters"}
    settings = PreparationSettings(Options(id_field="header"), deduplicate=deduplicate, valid_fraction=0.3, **near)
    files = [tmp_path / "0.fasta", tmp_path / "1.fasta"]
    prepare_files(files, tmp_path / "tokenizer", tmp_path / "out", settings=settings, task_bytes=8000)
    training, held_out = families_of(tmp_path / "out/train"), families_of(tmp_path / "out/valid")
    assert len(set(training) | set(held_out)) == 60, "one of each family stays"
    if deduplicate == "near":
        assert set(training).isdisjoint(held_out)
        assert len(training + held_out) <= 62
        words = PreparationSettings(**vars(settings) | {"near_unit": "words"})
        with pytest.raises(UserError, match="--near-unit characters"):
            prepare_files(files, tmp_path / "tokenizer", tmp_path / "out", settings=words)
    else:
        assert len(set(training) & set(held_out)) > 30
