"""Upload to the Hugging Face Hub. No other module changes repositories there.

huggingface_hub finds the token, in HF_TOKEN or where `hf auth login` stored it, and the address in HF_ENDPOINT. A
server can repeat the token in its answer: data_prep/common/output.py hides it where messages are printed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.constants import DEFAULT_REVISION
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, logging, validate_repo_id

from data_prep.common.errors import UserError, first_line, one_line
from data_prep.common.urls import redact
from pretrain.export.publication import Revision

_LICENCE_IDS = """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research
    intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit
    mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 open-mdw openrail openrail++ osl-3.0 other pddl postgresql unknown
    unlicense wtfpl zlib
"""  # that the Hub accepts in a model card


def check_target(repository: str, licence: str | None) -> None:
    """Raise UserError unless a repository can have this name, and the Hub has a licence with this id."""
    try:
        validate_repo_id(repository)
        valid = repository.count("/") == 1
    except HFValidationError:
        valid = False
    if not valid:
        raise UserError(f"--to is {repository!r}, not OWNER/NAME. Write for example --to your-name/bert-mini.")
    ids = _LICENCE_IDS.split()
    if licence is not None and licence not in ids:
        similar = get_close_matches(licence.lower(), ids) or ["apache-2.0", "mit", "other"]
        raise UserError(
            f"--license is {licence!r}, which is no licence id of the Hub. Did you mean {' or '.join(similar)}? "
            "All ids: https://huggingface.co/docs/hub/repositories-licenses"
        )


class HubRepository:
    """A model repository on the Hugging Face Hub. Opening it checks the token.

    huggingface_hub repeats requests that fail for a moment.

    Args:
        name: OWNER/NAME.

    Raises:
        UserError: (also in all methods) if there is no token, the Hub refuses it or the request, or cannot be reached.
    """

    def __init__(self, name: str) -> None:
        disable_progress_bars()
        logging.set_verbosity_error()  # its warnings on repeated requests have signed addresses
        self._name, self._api = name, HfApi(library_name="maskwright")
        self._hub = redact(self._api.endpoint)
        with self._user_errors("Checking the token"):
            self._api.whoami()

    def create(self, private: bool) -> None:
        """Create the repository if it is missing. Raises UserError if it must be private, and exists and is not."""
        with self._user_errors(f"Creating {self._name}"):
            self._api.create_repo(self._name, private=private or None, exist_ok=True)
            is_public = not self._api.model_info(self._name).private
        if private and is_public:
            raise UserError(f"{self._name} exists and is public. Make it private in its settings, or remove --private.")

    @property
    def page(self) -> str:
        """The address of the repository."""
        return f"{self._hub}/{self._name}"

    def upload(self, revision: Revision) -> bool:
        """Commit the files that the revision lacks, and create its branch if needed. Other files there stay.

        Returns:
            Whether there was something to commit.
        """
        branch, message = revision.name, f"Publish {revision.name}"
        additions = [CommitOperationAdd(name, content) for name, content in revision.files.items()]
        with self._user_errors(f"Uploading {branch}"):
            if branch != DEFAULT_REVISION:
                self._api.create_branch(self._name, branch=branch, exist_ok=True)
            before = self._api.model_info(self._name, revision=branch).sha
            commit = self._api.create_commit(self._name, additions, commit_message=message, revision=branch)
        return commit.oid != before

    @contextmanager
    def _user_errors(self, task: str) -> Iterator[None]:
        """Raise UserError for errors of the Hub and of the network."""
        try:
            yield
        except Exception as error:  # huggingface_hub, httpx2 and hf_xet raise many types
            raise UserError(self._message(task, error)) from None

    def _message(self, task: str, error: Exception) -> str:
        if isinstance(error, LocalTokenNotFoundError):
            return f"There is no token for {self._hub}. Run `hf auth login`, or set HF_TOKEN."
        if isinstance(error, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set, so nothing can be uploaded. Unset it."
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (403, 404):
            return f"Your token may not write to {self._name}. Use a token with write access, or another --to."
        if status == 401:
            return f"{self._hub} refuses your token. Get another there, and run `hf auth login` or set HF_TOKEN."
        if isinstance(error, ValueError) and status is None:  # metadata of the card that the Hub does not accept
            return f"{task} was refused: {one_line(str(error))}"
        return (
            f"{task} failed ({_reason(error)}). Check the network and {self._hub}, and run the same command again. It "
            "uploads only what is missing."
        )


def _reason(error: BaseException) -> str:
    """The cause in one line. Addresses, which may be signed, are left out."""
    while error.__cause__ is not None and not hasattr(error, "response"):
        error = error.__cause__
    if (response := getattr(error, "response", None)) is not None:
        return f"the server answered {response.status_code} {getattr(error, 'server_message', None) or ''}".rstrip()
    return first_line(error).partition("?")[0]
