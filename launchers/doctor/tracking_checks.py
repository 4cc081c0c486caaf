"""Checks of the tracking address: reachability of MLflow, and access by others."""

import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from data_prep.common.urls import redact
from launchers.doctor.storage_checks import Mount, existing, mount_of
from launchers.local import Finding, judge
from pretrain.config import OFFLINE, TrackConfig
from pretrain.planning import check_tracking
from pretrain.tracking import Target

_CREDENTIALS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_TOKEN")


def judge_database(path: Path, mount: Mount, writable: bool) -> Finding:
    """Judge a SQLite file, which only one machine may write to."""
    lost = "SQLite loses data on network file systems: run `mlflow server`, and set track.uri to its address"
    return judge(
        "mlflow",
        f"{path} ({mount.kind})",
        (not writable, "fail", "the file cannot be written: choose another track.uri"),
        (mount.is_network, "warn", lost),
    )


def judge_exposure(scheme: str, is_local: bool, has_password: bool) -> Finding:
    """Judge who can read the tracked data, or the password, over the network."""
    everyone = "everyone in its network can read and delete the runs: start it with --app-name basic-auth"
    return judge(
        "exposure",
        "this machine only" if is_local else f"over {scheme}, {'with' if has_password else 'without'} a password",
        (not is_local and not has_password, "warn", everyone),
        (not is_local and scheme == "http", "warn", "the password is sent unencrypted: put the server behind https"),
    )


def check_mlflow(track: TrackConfig) -> Iterator[Finding]:
    """Check the address from the config or MLFLOW_TRACKING_URI."""
    target = Target.of_training(track.uri, track.experiment)
    uri = target.uri
    if redact(uri) != uri:
        advice = "process lists and logs show it: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        yield Finding("password", "fail", f"in the address {redact(uri)}", advice)
    check_tracking(track)
    if uri == OFFLINE:
        yield Finding("mlflow", "ok", "nothing is sent until `maskwright track sync`")
    elif path := target.sqlite_path:
        folder = existing(path.parent)
        writable = os.access(path if path.exists() else folder, os.W_OK)
        yield judge_database(path, mount_of(folder), writable)
    elif urlsplit(uri).scheme in ("http", "https"):
        yield from _server(target)
    else:
        yield Finding("mlflow", "skipped", f"addresses of {urlsplit(uri).scheme} are not checked")


def _server(target: Target) -> Iterator[Finding]:
    uri, problem = target.uri, target.server_problem()
    advice = "check server and credentials; training continues without them, and `maskwright track sync` sends the rest"
    yield judge("mlflow", f"{uri}: {problem or 'answers'}", (problem is not None, "fail", advice))
    if problem is None:
        parts = urlsplit(uri)
        has_password = parts.password is not None or any(os.environ.get(name) for name in _CREDENTIALS)
        yield judge_exposure(parts.scheme, _is_loopback(parts.hostname or ""), has_password)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
