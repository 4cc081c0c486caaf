"""Models and tokenizers of the Hugging Face Hub, by name: `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION`.

Only files of known names are downloaded: configuration, tokenizer, safetensors weights. None is code or a pickle. They
go to the cache of huggingface_hub, which finds the token, and the address of the Hub in HF_ENDPOINT.
"""

import contextlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from data_prep.common.errors import UserError, cannot_write, one_line
from data_prep.common.reading import MAX_JSON_BYTES
from data_prep.common.urls import hub_reason, redact

TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_PREFIX = "hub:"
_NAME = re.compile(r"hub:((?:\w[\w.-]*/)?\w[\w.-]*)(?:@(\w[\w.-]*(?:/\w[\w.-]*)*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_VOCABULARIES = ("tokenizer.json", "vocab.txt")  # a tokenizer has one of them
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_MAX_WEIGHTS = 256 << 30  # bytes of all weights of a model
_SECONDS = 10.0  # to wait for the list of files: a cluster may drop packets to the Hub


def is_hub_name(name: str | Path) -> bool:
    """Whether this is a name of the Hub, not a path."""
    return str(name).startswith(_PREFIX)


def hub_parts(name: str | Path) -> tuple[str, str, bool]:
    """The repository and the revision of a name of the Hub, and whether this is a commit, whose files never change.

    Raises UserError for another form.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    match = _NAME.fullmatch(str(name))
    with contextlib.suppress(HFValidationError):
        if match:
            validate_repo_id(match[1])
            return match[1], match[2] or "main", _COMMIT.fullmatch(match[2] or "") is not None
    raise UserError(f"{name} is not a name of the Hub. Write hub:OWNER/NAME or hub:OWNER/NAME@REVISION.")


def fetch_from_hub(name: str | Path, weights: bool = True, shards: bool = True) -> Path:
    """Download a model or a tokenizer. Returns its name with the commit, `hub:OWNER/NAME@COMMIT`, for cached_folder.

    A path is returned unchanged. Files in the cache are not downloaded again, and an interrupted download resumes. If
    the Hub cannot be reached, the files in the cache are used.

    Args:
        weights: whether to download a model, not only a tokenizer. shards: whether its weights may be in many files.

    Raises:
        UserError: if there is no such model, it has no safetensors weights, or it can neither be downloaded nor found.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import logging

    if not is_hub_name(name):
        return Path(name)
    repository, revision, is_commit = hub_parts(name)
    folders = [_in_cache(name, part) for part in (weights, False)] if is_commit else [None]
    if all(folder and (folder / "tokenizer_config.json").is_file() for folder in folders):  # else part may be missing
        return Path(name)
    logging.set_verbosity_error()  # its warnings on repeated requests have signed addresses
    try:
        api = HfApi(library_name="maskwright")
        info = api.model_info(repository, revision=revision, files_metadata=True, timeout=_SECONDS)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        files = _needed(name, sizes, weights, shards)
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=files))
        if folder.name != info.sha:
            raise UserError(f"{name} changed during the download. Run the same command again.")
    except UserError:
        raise
    except Exception as error:  # huggingface_hub, httpx2 and hf_xet raise many types
        if refusal := _refusal(repository, revision, error):
            raise UserError(refusal) from None
        if (cached := _in_cache(name, weights)) is None:
            reason = one_line(hub_reason(error))
            raise UserError(f"{name} cannot be downloaded ({reason}). {_advice(name, weights)}") from None
        folder = cached
        print(f"note: the Hub cannot be reached; {name} is commit {folder.name} of the cache", file=sys.stderr)
    return Path(f"{_PREFIX}{repository}@{folder.name}")


def cached_folder(name: str | Path, weights: bool = True) -> Path:
    """The folder of a model or a tokenizer in the cache of huggingface_hub; a path is returned unchanged.

    No server is asked. Raises UserError if the cache lacks it.
    """
    from huggingface_hub import constants

    folder = _in_cache(name, weights) if is_hub_name(name) else Path(name)
    if folder is None:
        where = f"{name} is not in {constants.HF_HUB_CACHE}. The command that starts a run downloads it"
        raise UserError(f"{where}. On a cluster, set HF_HOME to a shared folder. {_advice(name, weights)}")
    return folder


def _in_cache(name: str | Path, weights: bool) -> Path | None:
    """The folder of a revision in the cache, if it has the needed files."""
    from huggingface_hub import try_to_load_from_cache

    repository, revision, _ = hub_parts(name)
    for file in (_CONFIG,) if weights else _VOCABULARIES:
        path = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(path, str) and (not weights or _has_weights(Path(path).parent)):
            return Path(path).parent
    return None


def _has_weights(folder: Path) -> bool:
    shards = [path.stem for path in folder.iterdir() if _SHARD.fullmatch(path.name)]
    return (folder / _WEIGHTS).is_file() or (bool(shards) and len(shards) == int(shards[0].rpartition("-")[2]))


def _needed(name: str | Path, sizes: Mapping[str, int], weights: bool, shards: bool) -> list[str]:
    """The files to download. sizes: bytes of all files of the revision."""
    small = [file for file in (*TOKENIZER_FILES, *[_CONFIG, _INDEX] * weights) if file in sizes]
    large = [_WEIGHTS] if _WEIGHTS in sizes else sorted(filter(_SHARD.fullmatch, sizes))
    if not small or (weights and _CONFIG not in sizes):
        missing = "config.json, so it is no model of transformers" if weights else "tokenizer.json"
        raise UserError(f"{name} has no {missing}. Name another one.")
    if weights and not large:
        raise UserError(
            f"{name} has no {_WEIGHTS}, and other files of weights, which could run code, are not read. Name a "
            "revision that has it, often @refs/pr/1, or convert the model on another machine with save_pretrained."
        )
    if weights and len(large) > 1 and not shards:
        raise UserError(f"{name} has its weights in {len(large)} files. Save the model again, in one file.")
    needed = small + large * weights
    for file in needed:
        if sizes[file] > (limit := _MAX_WEIGHTS // len(large) if file in large else MAX_JSON_BYTES):
            size = f"{sizes[file] / 1e6:,.0f} MB; at most {limit / 1e6:,.0f} are read"
            raise UserError(f"{file} of {name} has {size}. Name another model.")
    return needed


def _refusal(repository: str, revision: str, error: Exception) -> str | None:
    """The message for an error that another try cannot solve; None if the Hub could not be reached."""
    from huggingface_hub import constants, errors

    hub = redact(constants.ENDPOINT)
    if isinstance(error, errors.RepositoryNotFoundError):  # also if it needs permission
        page = f"{hub}/{repository}"
        return f"{page} is missing, or you may not read it. Correct the name, or ask there and run `hf auth login`."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision}. Name a branch, a tag or a commit of it."
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
        return str(cannot_write(constants.HF_HUB_CACHE, error, "HF_HOME"))
    return None


def _advice(name: str | Path, weights: bool) -> str:
    """What to do on a machine without a network."""
    repository, revision, _ = hub_parts(name)
    include = "--include '*.json' --include '*.txt'" + " --include 'model*.safetensors'" * weights
    command = f"hf download {repository} --revision {revision} {include} --local-dir {repository.rpartition('/')[2]}"
    return (
        f"Without a network, run `{command}` on another machine, copy the folder here, and name the folder instead of "
        f"{name}."
    )
