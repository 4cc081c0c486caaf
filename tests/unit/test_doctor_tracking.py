"""What `maskwright doctor` thinks of where runs are tracked: databases, servers, and their secrets."""

from launchers.doctor import storage, tracking
from tests.support.doctor import status


def test_tracking(tmp_path):
    reply = tracking.Reply
    disk, nfs = storage.Mount("/", "ext4"), storage.Mount("/", "nfs")
    assert status(tracking.judge_database(tmp_path, disk, writable=True)) == "ok"
    assert status(tracking.judge_database(tmp_path, nfs, writable=True)) == "warn"
    assert status(tracking.judge_database(tmp_path, disk, writable=False)) == "fail"
    assert status(tracking.judge_server("http://x", reply(200), False)) == "ok"
    assert status(tracking.judge_server("http://x", reply(None, "refused"), False)) == "fail"
    assert "asks for" in tracking.judge_server("http://x", reply(401), False).value
    assert "does not take" in tracking.judge_server("http://x", reply(403), True).value
    assert status(tracking.judge_server("http://x", reply(500), True)) == "fail"
    assert status(tracking.judge_exposure("http://x", False, reply(200))) == "warn"
    assert status(tracking.judge_exposure("http://x", False, reply(401))) == "ok"
    assert status(tracking.judge_exposure("http://x", True, reply(200))) == "ok"
    assert tracking.judge_encryption("https", False, True) is None
    assert tracking.judge_encryption("http", True, True) is None
    assert status(tracking.judge_encryption("http", False, True)) == "warn"
    assert tracking.judge_secret("http://x:5000") is None
    secret = tracking.judge_secret("http://me:hunter2@x:5000")
    assert status(secret) == "fail"
    assert "hunter2" not in str(secret)


def test_credentials():
    basic = {"Authorization": "Basic bWU6cHc="}
    assert tracking.credentials(None, None, {}) == {}
    assert tracking.credentials("me", "pw", {}) == basic
    assert (
        tracking.credentials(None, None, {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pw"}) == basic
    )
    assert tracking.credentials("me", "pw", {"MLFLOW_TRACKING_TOKEN": "t"}) == {"Authorization": "Bearer t"}
