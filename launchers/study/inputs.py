"""What the finished models of a study will be evaluated on, read before anything is trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain.config import Config
from pretrain.data.sources import open_sources


def check_inputs(config: Config, pairs: str | None, pairs_limit: int | None, finetune: Mapping[str, Any]) -> None:
    """Read minimal pairs, and the examples of a fine-tuning, as the evaluations will.

    Args:
        pairs_limit: of each UID; None for all.
        finetune: the parameters of `maskwright finetune`, by name; none for no fine-tuning.

    Raises:
        UserError: if these are not what the evaluations need.
    """
    if pairs:
        _check_pairs(config, pairs, pairs_limit)
    if finetune:
        _check_task(config, finetune)


def _check_pairs(config: Config, pairs: str, limit: int | None) -> None:
    from pretrain.evaluation.likelihood import check_lengths
    from pretrain.evaluation.pairs import limited, read_pairs, sentences
    from pretrain.evaluation.text import open_tokenizer
    from pretrain.model_folder import load_tokenizer

    every, folder = read_pairs(pairs), _tokenizer_of(config)
    tokenizer = open_tokenizer(load_tokenizer(folder), folder, config.causal)
    check_lengths(pairs, tokenizer, _longest(config), sentences(limited(every, limit) if limit else every))


def _check_task(config: Config, finetune: Mapping[str, Any]) -> None:
    from pretrain.finetuning.settings import Settings
    from pretrain.finetuning.task import open_task
    from pretrain.model_folder import load_tokenizer

    longest = _longest(config)
    settings = Settings(
        task=finetune["task"].value,
        max_length=min(finetune["max_length"] or longest, longest),
        columns=tuple(finetune["columns"].split(",")) if finetune["columns"] else (),
        limit=finetune["limit"],
        limit_valid=finetune["limit_valid"],
        metric=finetune["metric"],
    )
    open_task(settings, finetune["train"], finetune["valid"], load_tokenizer(_tokenizer_of(config)))


def _longest(config: Config) -> int:
    """Tokens of a text that the models take."""
    return config.model.max_positions or config.longest_row


def _tokenizer_of(config: Config) -> Path:
    return open_sources(config.data).datasets[0].tokenizer_path
