"""Damaged and hostile files: a seeded part of benchmarks/fuzz_readers.py."""

from pathlib import Path

import pytest

from benchmarks.fuzz_readers import campaign
from data_prep.common.errors import UserError
from pretrain.config_files import load_config


@pytest.mark.parametrize("cases", [150, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_damaged_file_ends_in_a_traceback_a_hang_or_a_wrong_type(tmp_path: Path, cases: int) -> None:
    counts, failures = campaign(tmp_path, cases, seed=1)
    assert failures == []
    assert sum(count for (_, verdict), count in counts.items() if verdict != "types checked") == cases


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 150))


@pytest.mark.parametrize("text", [BOMB, CHAIN, "a: &a [*a]\n", "a: " + "[" * 150 + "]" * 150])
def test_a_config_that_stands_for_too_much_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="nested too deep or too large"):
        load_config(path)
