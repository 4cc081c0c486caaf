"""What `maskwright doctor` thinks of Slurm: its programs, settings and partitions."""

import pytest

from launchers.doctor import slurm_checks
from launchers.slurm import client
from tests.support.doctor import status


@pytest.mark.parametrize("missing,expected", [((), "ok"), (("salloc",), "warn"), (client.PROGRAMS, "skipped")])
def test_slurm_programs(missing, expected):
    assert status(slurm_checks.judge_programs(missing)) == expected


CONFIG = """Configuration data as of 2026-01-01T00:00:00
JobRequeue              = 0
KillWait                = 10 sec
"""


def test_slurm_settings():
    found = {finding.name: finding for finding in slurm_checks.judge_settings(client.parse_settings(CONFIG))}
    assert status(found["requeue"]) == status(found["kill wait"]) == "warn"
    sound = client.parse_settings(CONFIG.replace("= 0", "= 1").replace("10 sec", "30 sec"))
    assert {finding.status for finding in slurm_checks.judge_settings(sound)} == {"ok"}


def test_slurm_partitions():
    lines = "main*|up|1-00:00:00|3|idle|gpu:8\nmain*|up|1-00:00:00|1|down*|gpu:8\nold|up|infinite|2|drained|(null)"
    main, down, old = slurm_checks.parse_partitions(lines + "\ngarbage")
    finding = slurm_checks.judge_partition([main, down])
    assert (finding.name, status(finding)) == ("partition main (default)", "ok")
    assert finding.value == "3 of 4 nodes in service, limit 1-00:00:00, gpu:8"
    assert status(slurm_checks.judge_partition([old])) == "warn"
    assert status(slurm_checks.judge_partition([main._replace(available="down")])) == "warn"
