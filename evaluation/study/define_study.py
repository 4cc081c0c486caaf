"""Build and check a study from a run config and options. All errors are reported before any training."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from data_prep.errors import UserError, working_directory
from data_prep.files import sha256_file
from evaluation.study.arms import Arm, grid
from evaluation.study.study_file import Measure, Study, check_same, deciding, open_study
from pretrain.config import Config, load_config
from pretrain.data import open_sources
from pretrain.data.training_sources import open_held_out
from pretrain.planning import check_start


def define(
    config: Config,
    strategies: list[str],
    rates: list[str],
    replacements: list[str],
    baseline: str | None,
    seeds: int,
    budget: Literal["tokens", "time", "both"],
    processes: int,
    pairs: str | None,
    pairs_limit: int | None,
    finetune: list[str],
) -> Study:
    """Define the study of a config.

    The primary measure is the downstream score if the study fine-tunes, else minimal pairs if it has them, else the
    held-out loss. So it is fixed before any result.

    Raises:
        UserError: if the config or the options do not give a valid study, or it cannot be trained.
    """
    _check(config, budget)
    if pairs_limit is not None and pairs is None:
        raise UserError("--pairs-limit says how many of --pairs are taken: name a file of pairs, or leave it out")
    arms = grid(strategies, rates, replacements, config.masking)
    names = [arm.name for arm in arms]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline} is not one of the arms, which are {', '.join(names)}")
    for arm in arms:
        check_start(_masked(config, arm), processes)
    held_out = config.data.valid
    assert held_out is not None  # checked above
    primary: Measure = "downstream" if finetune else "pairs" if pairs else "held_out"
    return Study(
        arms=tuple(arms),
        baseline=baseline or names[0],
        seeds=seeds,
        budget=budget,
        processes=processes,
        primary=primary,
        data=held_out,
        pairs=pairs,
        pairs_limit=pairs_limit,
        finetune=tuple(finetune),
        contents=_contents(config, pairs, finetune),
        config=deciding(config),
    )


def open_unchanged(folder: Path) -> Study:
    """Open the study in a folder to resume it.

    Raises:
        UserError: if there is no study, or data, files or config have changed since its start.
    """
    study = open_study(folder)
    config = load_config(folder / "config.yaml")
    _check(config, study.budget)
    contents = _contents(config, study.pairs, list(study.finetune))
    now = study.model_copy(update={"contents": contents, "config": deciding(config)})
    problem = f"{folder}: what the study is made with is not what it was when it was begun"
    check_same(study, now, problem, "put that back, or begin another study in another run.dir")
    return study


def _masked(config: Config, arm: Arm) -> Config:
    return Config.model_validate(config.model_dump(mode="json") | {"masking": arm.masking})


def _check(config: Config, budget: str) -> None:
    if config.objective != "mlm":
        raise UserError(f"a masking study needs objective mlm, not {config.objective}")
    if config.data.valid is None:
        raise UserError("data.valid is not set: a study compares its runs by a held-out data set; name one")
    if config.checkpoint.remote:
        raise UserError("checkpoint.remote is the place of one run alone; set it to null for a study")
    if config.cluster.nodes > 1:
        raise UserError(f"cluster.nodes is {config.cluster.nodes}; each run of a study trains on one node: set it to 1")
    if budget != "tokens" and (config.curriculum or config.train.batch_ramp):
        raise UserError(
            "Equal time needs steps of constant cost, but rows or batches change during the run; choose "
            "--budget tokens, or leave curriculum and train.batch_ramp out"
        )


def _contents(config: Config, pairs: str | None, finetune: list[str]) -> dict[str, str]:
    """Digests of all data, by name. For a URL of pairs or task files, the URL itself."""
    sources = open_sources(config.data)
    held_out = open_held_out(config.data, sources)
    assert held_out
    found = {"data.train": sources.fingerprint, "data.valid": held_out.manifest.fingerprint}
    if config.model.init:
        from pretrain.model import digest_of

        found["model.init"] = digest_of(config.model.init)
    files = {"--pairs": pairs, **{f"--finetune {option}": file for option, file in files_of(finetune).items()}}
    return found | {option: _digest(option, file) for option, file in files.items() if file}


def files_of(finetune: list[str]) -> dict[str, str]:
    """Files named by the fine-tuning options, by option."""
    words = [word for one in finetune for word in (one.split("=", 1) if one.startswith("--") else [one])]
    return {option: file for option, file in itertools.pairwise(words) if option in ("--train", "--valid")}


def _digest(option: str, file: str) -> str:
    if "://" in file:
        return file
    try:
        return sha256_file(Path(file))
    except OSError as error:
        where = f"{option} {file}{working_directory(file)}"
        raise UserError(f"{where} cannot be read: {error.strerror}. Correct the path.") from None


def check_inputs(config: Config, pairs: str | None, pairs_limit: int | None, finetune: Mapping[str, Any]) -> None:
    """Read minimal pairs and fine-tuning examples as the evaluations do after training.

    Args:
        pairs_limit: per UID; None: all.
        finetune: parameters of `maskwright finetune`, by name; empty: no fine-tuning.

    Raises:
        UserError: if the evaluations could not use them.
    """
    if pairs:
        _check_pairs(config, pairs, pairs_limit)
    if finetune:
        _check_task(config, finetune)


def _check_pairs(config: Config, pairs: str, limit: int | None) -> None:
    from evaluation.likelihood import check_lengths, limited, open_tokenizer, read_pairs, sentences
    from pretrain.export import load_tokenizer

    every, folder = read_pairs(pairs), _tokenizer_of(config)
    tokenizer = open_tokenizer(load_tokenizer(folder), folder, config.causal)
    check_lengths(pairs, tokenizer, _longest(config), sentences(limited(every, limit) if limit else every))


def _check_task(config: Config, finetune: Mapping[str, Any]) -> None:
    from evaluation.finetuning import FinetuneSettings, open_task
    from pretrain.export import load_tokenizer

    longest = _longest(config)
    settings = FinetuneSettings(
        task=finetune["task"],
        max_length=min(finetune["max_length"] or longest, longest),
        columns=tuple(finetune["columns"].split(",")) if finetune["columns"] else (),
        limit=finetune["limit"],
        limit_valid=finetune["limit_valid"],
        metric=finetune["metric"],
    )
    open_task(settings, finetune["train"], finetune["valid"], load_tokenizer(_tokenizer_of(config)))


def _longest(config: Config) -> int:
    """Maximum text length of the models in tokens."""
    return config.model.max_positions or config.longest_row


def _tokenizer_of(config: Config) -> Path:
    return open_sources(config.data).datasets[0].tokenizer_path
