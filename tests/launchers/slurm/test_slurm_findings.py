"""Doctor checks of Slurm: its programs and the time to stop."""

import random

import pytest

from launchers.slurm import client, slurm_findings
from tests.support.doctor import status


@pytest.mark.parametrize("missing,expected", [((), "ok"), (("salloc",), "warn"), (client.PROGRAMS, "skipped")])
def test_slurm_programs(missing, expected):
    assert status(slurm_findings.judge_programs(missing)) == expected


@pytest.mark.parametrize("seconds,expected", [(10, "warn"), (30, "ok")])
def test_time_to_stop(seconds, expected):
    assert status(slurm_findings.judge_kill_wait(seconds)) == expected


def test_random_output_of_scontrol_does_no_harm():
    draw = random.Random(0)
    for _ in range(200):
        client.parse_settings("".join(draw.choice("ab01|=,*\n -.") for _ in range(80)))
