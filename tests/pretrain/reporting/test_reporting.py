"""Messages of rank 0."""

from types import SimpleNamespace

from pretrain.reporting import Reports
from pretrain.run import RunFolder
from tests.support.configs import least_config


def test_the_step_of_a_status_is_that_of_the_last_step(tmp_path, capsys):
    """Checkpoints are reported later, rollbacks at the spike; after a rollback, step numbers are lower again."""
    track = {"uri": "none", "system_seconds": 0}
    config = least_config(run={"dir": tmp_path}, train={"steps": 40}, track=track)
    folder = RunFolder(tmp_path)
    environment = {"git_commit": None, "git_changes": False, "slurm": {}, "packages": {"maskwright": None}}
    environment |= {"processes": 1, "hosts": [], "parameters": 1}
    data = SimpleNamespace(fingerprint="0", datasets=())
    told = Reports(config, folder, 0, ["here"], data, None, 0, environment)
    batch = {"rows": 8}
    for step, metrics, of in (
        (21, {"train/loss": 9.0}, batch),
        (16, {"checkpoint/seconds": 1.0}, None),
        (21, {"train/rollback_to": 16.0}, None),
        (17, {"train/loss": 5.0}, batch),
        (16, {"checkpoint/seconds": 1.0}, None),
    ):
        told.report(step, metrics, of)
    folder.report.mkdir()  # so that the page cannot be written, which must not fail the run
    told.close("stopped", None)
    assert folder.read_status().step == 17
    assert "report.html was not written" in capsys.readouterr().err
