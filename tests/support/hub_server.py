"""A server that speaks the protocol of the Hugging Face Hub for model repositories, with faults on request.

It has what huggingface_hub needs to create a repository, commit to branches, and download revisions. It checks tokens.
All files are small ones: LFS is the library's own work.
"""

import base64
import hashlib
import http.server
import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants
from huggingface_hub.utils.sha import git_hash

from tests.support.web import running

OWNER = "someone"


@dataclass
class Repository:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        names = sorted((name, git_hash(content)) for name, content in files.items())
        sha = hashlib.sha1(json.dumps([names, len(self.commits)]).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def files(self, revision: str) -> dict[str, bytes] | None:
        return self.commits.get(self.branches.get(revision, revision))


@dataclass
class Store:
    """What the Hub keeps, and what it was asked.

    roles: "write" or "read" by token.
    requests: number of requests by kind, as methods of _Handler are named.
    says: a part of the answer in a fault, from the headers of the request.
    faults: status codes to answer the next requests with, by kind.
    wrong_metadata: what is wrong with the metadata of model cards.
    """

    roles: dict[str, str]
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[int]] = field(default_factory=dict)
    wrong_metadata: list[str] = field(default_factory=list)
    says: Callable[[Any], str] = lambda headers: ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Hub(http.server.ThreadingHTTPServer):
    """Serves a store at `url`."""

    block_on_close = False

    def __init__(self, store: Store):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store, self.url = store, f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that goes away is no error of the server."""


def serving_hub(store: Store) -> AbstractContextManager[Hub]:
    return running(Hub(store))


def connect(patch: pytest.MonkeyPatch, hub: Hub, home: Path) -> None:
    """Give this process and its children the settings of a user of this Hub, with the cache in `home`."""
    set_constants(patch.setattr, hub.url, home)
    for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}.items():
        patch.setenv(name, value)


def set_constants(set_: Callable[[object, str, object], None], address: str, home: Path) -> None:
    """Set what huggingface_hub reads from the environment once, when it is imported."""
    settings = {"ENDPOINT": address, "HF_TOKEN_PATH": str(home / "token"), "HF_HUB_DISABLE_XET": True}
    settings |= {"HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}"}
    for name, value in (settings | {"HF_HUB_CACHE": str(home / "hub")}).items():
        set_(constants, name, value)


_ROUTES = (
    (r"GET /api/whoami-v2", "whoami"),
    (r"POST /api/repos/create", "create"),
    (r"POST /api/validate-yaml", "validate"),
    (r"GET /api/(?:models|datasets)/(?P<repo>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?", "info"),
    (r"POST /api/models/(?P<repo>[^/]+/[^/]+)/branch/(?P<revision>[^/]+)", "branch"),
    (r"GET /api/(?:models|datasets)/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree"),
    (r"POST /api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<revision>[^/]+)", "preupload"),
    (r"POST /api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<revision>[^/]+)", "commit"),
    (r"(?:GET|HEAD) (?:/datasets)?/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
)
_WRITES = ("create", "branch", "preupload", "commit")
_READS = ("info", "tree", "preupload", "commit", "resolve")  # of a revision that exists


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        store, path = self.server.store, urlsplit(self.path).path
        matches = ((re.fullmatch(pattern, f"{self.command} {path}"), kind) for pattern, kind in _ROUTES)
        match, kind = next(((match, kind) for match, kind in matches if match), (None, ""))
        if match is None:
            self._answer(501, {"error": f"no {self.command} {path}"})
            return
        with store.lock:
            store.requests[kind] += 1
            fault = store.faults[kind].pop(0) if store.faults.get(kind) else None
        values = {name: unquote(value) for name, value in match.groupdict().items() if value}
        role = store.roles.get((self.headers["Authorization"] or "").removeprefix("Bearer "))
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        repository = store.repositories.get(values.get("repo", ""))
        may_see = repository and (not repository.private or role)
        if fault:
            self._answer(fault, {"error": f"a fault on request, {store.says(self.headers)}".removesuffix(", ")})
        elif kind == "whoami" and not role:
            self._answer(401, {"error": "Invalid credentials in Authorization header"})
        elif kind in _WRITES and role != "write":
            self._answer(403, {"error": "You don't have the rights"})
        elif "repo" in values and not may_see:
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif kind in _READS and repository.files(values.setdefault("revision", "main")) is None:
            self._answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            getattr(self, f"_{kind}")(body, repository, values)

    do_POST = do_PUT = do_HEAD = do_GET

    def _whoami(self, body: bytes, repository: None, values: dict[str, str]) -> None:
        self._answer(200, {"type": "user", "name": OWNER, "auth": {"type": "access_token"}})

    def _create(self, body: bytes, repository: None, values: dict[str, str]) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] != OWNER:
            self._answer(403, {"error": f"You don't have the rights to create a model under {asked['organization']}"})
        elif name in self.server.store.repositories:
            self._answer(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{name}"})
        else:
            created = Repository(asked.get("visibility") == "private")
            created.commit("main", {".gitattributes": b""})
            self.server.store.repositories[name] = created
            self._answer(200, {"url": f"{self.server.url}/{name}"})

    def _validate(self, body: bytes, repository: None, values: dict[str, str]) -> None:
        errors = [{"message": text} for text in self.server.store.wrong_metadata]
        self._answer(400 if errors else 200, {"errors": errors, "warnings": []})

    def _info(self, body: bytes, repository: Repository, values: dict[str, str]) -> None:
        sha = repository.branches.get(values["revision"], values["revision"])
        siblings = [{"rfilename": name, "size": len(content)} for name, content in repository.files(sha).items()]
        self._answer(200, {"id": values["repo"], "sha": sha, "private": repository.private, "siblings": siblings})

    def _branch(self, body: bytes, repository: Repository, values: dict[str, str]) -> None:
        if values["revision"] in repository.branches:
            self._answer(409, {"error": "Reference already exists"})
        else:
            start = json.loads(body).get("startingPoint", "main")
            repository.branches[values["revision"]] = repository.branches.get(start, start)
            self._answer(200, {})

    def _tree(self, body: bytes, repository: Repository, values: dict[str, str]) -> None:
        below = values["path"] + "/" if "path" in values else ""
        files = {name: data for name, data in repository.files(values["revision"]).items() if name.startswith(below)}
        folders = {str(folder) for name in files for folder in PurePath(name).parents} - {"."} if below else set()
        if "recursive=false" in self.path:
            inner = {name for name in files if "/" in name[len(below) :]}
            folders = {below + name.removeprefix(below).partition("/")[0] for name in inner}
            files = {name: data for name, data in files.items() if name not in inner}
        entries = [{"type": "directory", "oid": "0" * 40, "path": folder} for folder in sorted(folders)]
        for name, content in files.items():
            entries.append({"type": "file", "oid": git_hash(content), "size": len(content), "path": name})
        self._answer(200, entries)

    def _preupload(self, body: bytes, repository: Repository, values: dict[str, str]) -> None:
        stored = repository.files(values["revision"])
        files = []
        for path in (file["path"] for file in json.loads(body)["files"]):
            oid = git_hash(stored[path]) if path in stored else None
            files.append({"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": oid})
        self._answer(200, {"files": files})

    def _commit(self, body: bytes, repository: Repository, values: dict[str, str]) -> None:
        files = dict(repository.files(values["revision"]))
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        sha = repository.commit(values["revision"], files)
        self._answer(200, {"commitUrl": f"{self.server.url}/{values['repo']}/commit/{sha}", "commitOid": sha})

    def _resolve(self, body: bytes, repository: Repository, values: dict[str, str]) -> None:
        content = repository.files(values["revision"]).get(values["path"])
        commit = {"X-Repo-Commit": repository.branches.get(values["revision"], values["revision"])}
        if content is None:
            self._answer(404, {"error": "Entry not found"}, commit | {"X-Error-Code": "EntryNotFound"})
            return
        self._answer(200, content, commit | {"ETag": f'"{git_hash(content)}"'})

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        message = {"X-Error-Message": content["error"]} if isinstance(content, dict) and "error" in content else {}
        for name, value in (message | (headers or {}) | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args):
        pass
