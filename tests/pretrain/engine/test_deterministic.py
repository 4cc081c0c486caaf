"""run.deterministic: two trainings give the same bits, and libraries are told before they read their settings.

tests/gpu/test_engine.py does the same on a GPU.
"""

import pytest

import pretrain.engine
from data_prep.common.errors import UserError
from pretrain.train import run_rank
from tests.support.ranks import run_ranks


def test_two_trainings_give_the_same_bits():
    run_ranks("tests.pretrain.engine.repeat_worker", 2, "plain")


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["run.deterministic=true"], True),
        ([], False),
        (["run.deterministic=perhaps"], False),  # the ranks report it once they can talk to each other
    ],
)
def test_the_group_is_made_for_deterministic_sums(overrides, wanted, tmp_path, monkeypatch):
    joined = []

    def refuse(deterministic: bool) -> None:
        joined.append(deterministic)
        raise UserError("no group")

    monkeypatch.setattr(pretrain.engine, "init_distributed", refuse)
    config = tmp_path / "config.yaml"
    config.write_text(f"run: {{dir: {tmp_path}}}\ndata: {{train: x}}\ntrain: {{steps: 1}}\n")
    assert run_rank(config, overrides) == 1
    assert joined == [wanted]
