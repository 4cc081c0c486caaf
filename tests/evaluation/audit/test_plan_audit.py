"""The steps that an audit repeats, without training."""

from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from evaluation.audit import plan_audit
from pretrain.run import RunFolder
from tests.support.checkpoints import make_checkpoint
from tests.support.report_runs import step_line, write_run


def make_run(path: Path, steps: range, saved: tuple[int, ...]) -> RunFolder:
    folder = RunFolder(write_run(path, [step_line(step, 0.0) for step in steps]))
    for step in saved:
        make_checkpoint(folder.checkpoints, step)
    return folder


def test_a_branch_is_repeated_from_the_checkpoint_that_it_began_with(tmp_path):
    trunk = make_run(tmp_path / "trunk", range(1, 9), (8,)).checkpoints / "step-00000008"
    branch = make_run(tmp_path / "branch", range(9, 13), (12,))
    for steps in (None, (10, 11)):
        plan = plan_audit(branch, steps, str(trunk))
        assert (plan.start, plan.end, plan.begins) == (8, 12, trunk)
    with pytest.raises(UserError, match=r"has no step 1, which would be compared\. Its steps are 9 to 12\."):
        plan_audit(branch, (9, 12), str(tmp_path / "gone/checkpoints/step-00000008"))


def test_steps_that_the_run_has_not_taken_are_not_repeated(tmp_path):
    run = make_run(tmp_path / "run", range(1, 7), (2, 4))
    assert plan_audit(run, None) == plan_audit(run, (3, 4)) == plan_audit(run, (4, 4))
    assert plan_audit(run, (5, 6)).end == 6
    with pytest.raises(UserError, match=r"has no step 7, which would be compared\. Its steps are 1 to 6\."):
        plan_audit(run, (5, 7))
