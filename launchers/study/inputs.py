"""What the finished models of a study will be evaluated on, read before anything is trained."""

from collections.abc import Mapping
from typing import Any

from pretrain.config import Config
from pretrain.data.sources import open_sources


def check_inputs(config: Config, pairs: str | None, finetune: Mapping[str, Any]) -> None:
    """Read minimal pairs, and the examples of a fine-tuning, as the evaluations will.

    Args:
        finetune: the parameters of `maskwright finetune`, by name; none for no fine-tuning.

    Raises:
        UserError: if these are not what the evaluations need.
    """
    if pairs:
        from pretrain.evaluation.pairs import read_pairs

        read_pairs(pairs)
    if finetune:
        _check_task(config, finetune)


def _check_task(config: Config, finetune: Mapping[str, Any]) -> None:
    from pretrain.finetuning.settings import Settings
    from pretrain.finetuning.task import open_task
    from pretrain.model_folder import load_tokenizer

    longest = config.model.max_positions or config.longest_row
    settings = Settings(
        task=finetune["task"].value,
        max_length=min(finetune["max_length"] or longest, longest),
        columns=tuple(finetune["columns"].split(",")) if finetune["columns"] else (),
        limit=finetune["limit"],
        limit_valid=finetune["limit_valid"],
        metric=finetune["metric"],
    )
    tokenizer = load_tokenizer(open_sources(config.data).datasets[0].tokenizer_path)
    open_task(settings, finetune["train"], finetune["valid"], tokenizer)
