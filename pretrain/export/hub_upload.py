"""Upload to the Hugging Face Hub. No other module changes repositories there.

huggingface_hub finds the token, in HF_TOKEN or where `hf auth login` stored it, and the address in HF_ENDPOINT. A
server can repeat the token in its answer: data_prep/common/output.py hides it where messages are printed.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import disable_progress_bars, logging, validate_repo_id
from huggingface_hub.utils.sha import git_hash

from data_prep.common.errors import UserError, first_line, one_line
from data_prep.common.files import sha256_file
from data_prep.common.urls import redact
from pretrain.export.publication import MAIN

T = TypeVar("T")

ATTEMPTS = 3
_BACKOFF_SECONDS = 1.0
_TEMPORARY = (408, 409, 412, 425, 429)  # of the answers from 400 to 499


def check_repository(name: str) -> None:
    """Raise UserError unless a repository can have this name."""
    try:
        validate_repo_id(name)
        valid = name.count("/") == 1
    except HFValidationError:
        valid = False
    if not valid:
        raise UserError(f"--to is {name!r}, not OWNER/NAME. Write for example --to your-name/bert-mini.")


class HubRepository:
    """A model repository on the Hugging Face Hub. Opening it checks the token.

    huggingface_hub repeats most requests that fail. What still fails is tried ATTEMPTS times.

    Args:
        name: OWNER/NAME.
        say: receives a line for each attempt that failed.

    Raises:
        UserError: (also in all methods) if there is no token, the Hub refuses it or the request, or cannot be reached.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        disable_progress_bars()
        logging.set_verbosity_error()  # its warnings on repeated requests have signed addresses
        self._name, self._say, self._api = name, say, HfApi(library_name="maskwright")
        self._hub = redact(self._api.endpoint)
        self._attempt("Checking the token", self._api.whoami)

    def create(self, private: bool) -> None:
        """Create the repository if it is missing. Raises UserError if it must be private, and exists and is not."""
        name = self._name
        self._attempt(f"Creating {name}", lambda: self._api.create_repo(name, private=private or None, exist_ok=True))
        if private and not self._attempt(f"Reading {name}", lambda: self._api.model_info(name)).private:
            raise UserError(f"{name} exists and is public. Make it private in its settings, or remove --private.")

    @property
    def page(self) -> str:
        """The address of the repository."""
        return f"{self._hub}/{self._name}"

    def upload(self, revision: str, files: Mapping[str, Path | bytes]) -> int:
        """Commit the files that the revision lacks, and create its branch if needed. Other files there stay.

        Args:
            files: path of a file, or its content, by name.

        Returns:
            The number of files that were committed.
        """
        return self._attempt(f"Uploading {revision}", lambda: self._upload(revision, files))

    def _upload(self, revision: str, files: Mapping[str, Path | bytes]) -> int:
        if revision != MAIN:
            self._api.create_branch(self._name, branch=revision, exist_ok=True)
        tree = self._api.list_repo_tree(self._name, revision=revision)
        stored = {file.path: file for file in tree if isinstance(file, RepoFile)}
        changed = {name: content for name, content in files.items() if not _equal(stored.get(name), content)}
        if changed:
            additions = [CommitOperationAdd(name, content) for name, content in changed.items()]
            self._api.create_commit(self._name, additions, commit_message=f"Publish {revision}", revision=revision)
        return len(changed)

    def _attempt(self, task: str, action: Callable[[], T]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return action()
            except Exception as error:  # huggingface_hub, httpx2 and hf_xet raise many types
                if refusal := self._refusal(task, error):
                    raise UserError(refusal) from None
                reason = _reason(error)
            if attempt < ATTEMPTS:
                self._say(f"{task} failed ({reason}). Attempt {attempt + 1} of {ATTEMPTS} follows.")
                time.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))
        raise UserError(
            f"{task} failed {ATTEMPTS} times ({reason}). Check the network and {self._hub}, and run the same "
            "command again. It uploads only what is missing."
        )

    def _refusal(self, task: str, error: Exception) -> str | None:
        """The message for an error that another attempt would only repeat."""
        if isinstance(error, LocalTokenNotFoundError):
            return f"There is no token for {self._hub}. Run `hf auth login`, or set HF_TOKEN."
        if isinstance(error, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set, so nothing can be uploaded. Unset it."
        status = getattr(getattr(error, "response", None), "status_code", 500)
        if status in (403, 404):
            return f"Your token may not write to {self._name}. Use a token with write access, or another --to."
        if status == 401:
            return f"{self._hub} refuses your token. Get another there, and run `hf auth login` or set HF_TOKEN."
        if isinstance(error, ValueError):  # such as metadata of the card that the Hub does not accept
            return f"{task} was refused: {one_line(str(error))}"
        if 400 <= status < 500 and status not in _TEMPORARY:
            return f"{task} was refused: {_reason(error)}."
        return None


def _equal(stored: RepoFile | None, content: Path | bytes) -> bool:
    """Whether a file of a repository has this content: SHA-256 of large files, git's hash of the others."""
    if stored is None:
        return False
    if isinstance(content, Path) and stored.lfs:
        return bool(stored.lfs.sha256 == sha256_file(content))
    data = content.read_bytes() if isinstance(content, Path) else content
    return bool(stored.size == len(data) and stored.blob_id == git_hash(data))


def _reason(error: BaseException) -> str:
    """The cause in one line. Addresses, which may be signed, are left out."""
    while error.__cause__ is not None and not hasattr(error, "response"):
        error = error.__cause__
    if (response := getattr(error, "response", None)) is not None:
        return f"the server answered {response.status_code} {getattr(error, 'server_message', None) or ''}".rstrip()
    return first_line(error).partition("?")[0]
