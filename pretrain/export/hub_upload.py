"""Upload to the Hugging Face Hub. No other module changes repositories there.

huggingface_hub finds the token, in HF_TOKEN or where `hf auth login` stored it, and the address in HF_ENDPOINT. A
server can repeat the token in its answer: data_prep/common/output.py hides it where messages are printed.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.constants import DEFAULT_REVISION
from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, logging

from data_prep.common.errors import UserError, one_line
from data_prep.common.urls import hub_reason, redact
from data_prep.storage import hub_parts
from pretrain.export.publication import Revision


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

    @staticmethod
    def check_name(name: str) -> None:
        """Raise UserError unless a repository can have this name."""
        with suppress(UserError):
            if "/" in name and hub_parts(f"hub:{name}")[0] == name:
                return
        raise UserError(f"--to is {name!r}, not OWNER/NAME. Write for example --to your-name/bert-mini.")

    def create(self, private: bool, card: str) -> None:
        """Create the repository if it is missing, and if the Hub accepts the metadata of a model card.

        Raises UserError also if it must be private, and exists and is public.
        """
        with self._user_errors("The model card"):
            ModelCard(card).validate()
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
            return f"{task} was refused: {one_line(_refusal(str(error)))}"
        return (
            f"{task} failed ({hub_reason(error)}). Check the network and {self._hub}, and run the same command again. "
            "It uploads only what is missing."
        )


def _refusal(text: str) -> str:
    """The Hub's sentences about metadata, from its answer in JSON or from a message of huggingface_hub."""
    try:
        return "; ".join(each["message"] for each in json.loads(text)["errors"])
    except (ValueError, LookupError, TypeError):
        return text
