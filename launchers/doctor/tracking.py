"""The tracking server: whether it answers, whom it lets in, and where a SQLite file lies."""

import base64
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from data_prep.remote import redact
from launchers.doctor.finding import Check, Finding
from launchers.doctor.network import outside_address
from launchers.doctor.storage import Mount, existing, mount_of
from pretrain.config.mlflow_address import address_problem, missing_driver
from pretrain.config.run import TrackConfig

SECONDS = 5.0
_ASKED = "/api/2.0/mlflow/experiments/search?max_results=1"  # what any client may ask of a server that lets it in


class Reply(NamedTuple):
    """A server's status code, or in words why there is none."""

    code: int | None
    problem: str = ""


def checks(track: TrackConfig) -> list[Check]:
    """The checks of where a run is tracked, which MLFLOW_TRACKING_URI may say too."""
    return [Check("tracking", "mlflow", lambda: _mlflow(track), seconds=4 * SECONDS)]


def judge_secret(uri: str) -> Finding | None:
    """A failure where an address holds a password."""
    if redact(uri) == uri:
        return None
    advice = "process lists and logs show it: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
    return Finding("password", "fail", f"in the address {redact(uri)}", advice)


def judge_database(path: Path, mount: Mount, writable: bool) -> Finding:
    """A SQLite file, which one machine may write to."""
    value = f"{path} on {mount.kind}"
    if not writable:
        return Finding("mlflow", "fail", f"{value} cannot be written", "choose another track.uri")
    if mount.network:
        advice = "SQLite loses data on network file systems: run `mlflow server`, and set track.uri to its address"
        return Finding("mlflow", "warn", f"{value} (network)", advice)
    if mount.kind in ("tmpfs", "ramfs"):
        return Finding("mlflow", "warn", value, "it is in memory, and gone after a reboot: choose another track.uri")
    return Finding("mlflow", "ok", value)


def judge_server(uri: str, reply: Reply, has_credentials: bool) -> Finding:
    """What a server says to this user; training does not wait for it, but what it misses is sent late."""
    if reply.code is None:
        advice = "training continues without it; `maskwright track sync RUN` sends what it missed"
        return Finding("mlflow", "fail", f"{uri} does not answer: {reply.problem}", advice)
    if reply.code in (401, 403):
        ours = "does not take the credentials of the environment" if has_credentials else "asks for credentials"
        advice = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to valid ones"
        return Finding("mlflow", "fail", f"{uri} {ours} ({reply.code})", advice)
    if reply.code != 200:
        advice = "no MLflow of a supported version, or a broken one: its log says more"
        return Finding("mlflow", "fail", f"{uri} answers {reply.code}", advice)
    return Finding("mlflow", "ok", f"{uri} answers")


def judge_exposure(place: str, loopback: bool, stranger: Reply) -> Finding:
    """Who else may read and change what is tracked: `stranger` is the reply to one without credentials at `place`."""
    if loopback:
        return Finding("exposure", "ok", f"{place} is this machine's own")
    if stranger.code == 200:
        advice = (
            "all in that network can read and delete the runs: mlflow server --host 127.0.0.1 or --app-name basic-auth"
        )
        return Finding("exposure", "warn", f"{place} answers without a password", advice)
    if stranger.code in (401, 403):
        return Finding("exposure", "ok", f"{place} refuses strangers ({stranger.code})")
    return Finding("exposure", "ok", f"nothing is shown to strangers at {place}")


def judge_encryption(scheme: str, loopback: bool, has_credentials: bool) -> Finding | None:
    """A warning where a password goes over the network in clear."""
    if scheme == "https" or loopback or not has_credentials:
        return None
    return Finding("encryption", "warn", "the password is sent over plain http", "put the server behind https")


def ask_server(uri: str, headers: Mapping[str, str], seconds: float = SECONDS) -> Reply:
    """Ask an MLflow server for one experiment."""
    request = urllib.request.Request(uri.rstrip("/") + _ASKED, headers=dict(headers))
    context = ssl.create_default_context()
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(request, timeout=seconds, context=context) as response:
            return Reply(response.status)
    except urllib.error.HTTPError as error:
        return Reply(error.code)
    except urllib.error.URLError as error:
        return Reply(None, str(error.reason))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Reply(None, str(error) or type(error).__name__)


def _mlflow(track: TrackConfig) -> Iterator[Finding]:
    from pretrain.tracking import OFFLINE, resolve_target

    uri, _ = resolve_target(track.uri, track.experiment)
    if finding := judge_secret(uri):
        yield finding
    if problem := address_problem(uri) or missing_driver(uri):
        yield Finding("mlflow", "fail", problem, "correct track.uri or MLFLOW_TRACKING_URI")
        return
    parts = urlsplit(uri)
    if uri == OFFLINE:
        yield Finding("mlflow", "ok", "nothing is sent until `maskwright track sync`")
    elif parts.scheme == "sqlite":
        path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
        folder = existing(path.parent)
        writable = os.access(path if path.exists() else folder, os.W_OK)
        yield judge_database(path, mount_of(folder), writable)
    elif parts.scheme in ("http", "https"):
        yield from _server(uri)
    else:
        yield Finding("mlflow", "skipped", f"addresses of {parts.scheme} are not checked")


def _server(uri: str) -> Iterator[Finding]:
    parts = urlsplit(uri)
    host = parts.hostname or ""
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    headers = credentials(parts.username, parts.password, os.environ)
    reply = ask_server(bare, headers)
    yield judge_server(bare, reply, bool(headers))
    if reply.code is None:
        return
    loopback = _is_loopback(host)
    if finding := judge_encryption(parts.scheme, loopback, bool(headers)):
        yield finding
    own = outside_address()
    if loopback and own:  # it may listen on every address of this machine
        port = parts.port or (443 if parts.scheme == "https" else 80)
        outside = f"{parts.scheme}://{own}:{port}"
        stranger = ask_server(outside, {"Host": parts.netloc.rpartition("@")[2]}, seconds=2)
        yield judge_exposure(outside if stranger.code else bare, stranger.code is None, stranger)
    else:
        yield judge_exposure(bare, loopback, ask_server(bare, {}) if headers else reply)


def credentials(user: str | None, password: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The header by which MLflow's client would show who it is; empty where it knows nothing."""
    if token := environment.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user = environment.get("MLFLOW_TRACKING_USERNAME") or user
    password = environment.get("MLFLOW_TRACKING_PASSWORD") or password
    if user is None or password is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
