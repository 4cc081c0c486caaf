"""What `maskwright doctor` thinks of Slurm: its programs and the time to stop."""

import pytest

from launchers.doctor import slurm_checks
from launchers.slurm import client
from tests.support.doctor import status


@pytest.mark.parametrize("missing,expected", [((), "ok"), (("salloc",), "warn"), (client.PROGRAMS, "skipped")])
def test_slurm_programs(missing, expected):
    assert status(slurm_checks.judge_programs(missing)) == expected


@pytest.mark.parametrize("seconds,expected", [(10, "warn"), (30, "ok")])
def test_time_to_stop(seconds, expected):
    assert status(slurm_checks.judge_kill_wait(seconds)) == expected
