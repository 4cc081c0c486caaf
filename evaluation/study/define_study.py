"""Build and check a study from a run config and options. All errors are reported before any training."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from data_prep.common.errors import UserError, working_directory
from data_prep.common.files import sha256_file
from evaluation.study.study_file import Arm, Study, check_same, continued, deciding
from pretrain.config import Config, MaskingConfig
from pretrain.config_files import load_config, percent, value_refusal
from pretrain.data import Sources
from pretrain.planning import check_start, print_warnings

_USUAL = "80/10/10"
_TASK_FILES = ("--train", "--valid")  # options of `maskwright finetune`


def define(
    config: Config,
    strategies: list[str],
    rates: list[str],
    replacements: list[str],
    baseline: str | None,
    seeds: int,
    processes: int,
    pairs: str | None,
    pairs_limit: int | None,
    finetune: list[str],
) -> Study:
    """Define the study of a config, or continue the study in run.dir, also with more seeds.

    The primary measure is the downstream score if the study fine-tunes, else minimal pairs if it has them, else the
    held-out loss. So it is fixed before any result.

    Raises UserError if the config or the options do not give a valid study, it cannot be trained, or run.dir holds
    another study.
    """
    _check(config)
    if pairs_limit is not None and pairs is None:
        raise UserError("--pairs-limit says how many of --pairs are taken: name a file of pairs, or leave it out")
    arms = grid(strategies, rates, replacements, config.masking)
    names = [arm.name for arm in arms]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline} is not one of the arms, which are {', '.join(names)}")
    configs = (Config.model_validate(config.model_dump(mode="json") | {"masking": arm.masking}) for arm in arms)
    print_warnings(warning for arm in configs for warning in check_start(arm, processes))
    assert config.data.valid is not None  # checked above
    study = Study(
        folder=config.run.dir,
        arms=tuple(arms),
        baseline=baseline or names[0],
        seeds=seeds,
        processes=processes,
        primary="downstream" if finetune else "pairs" if pairs else "held_out",
        data=config.data.valid,
        pairs=pairs,
        pairs_limit=pairs_limit,
        finetune=tuple(finetune),
        contents=_contents(config, pairs, finetune),
        config=deciding(config),
    )
    return continued(study)


def open_unchanged(folder: Path) -> Study:
    """Open the study in a folder to resume it.

    Raises UserError if there is no study, or data, files or config have changed since its start.
    """
    study = Study.open(folder)
    config = load_config(folder / "config.yaml")
    _check(config)
    contents = _contents(config, study.pairs, list(study.finetune))
    now = study.model_copy(update={"contents": contents, "config": deciding(config)})
    problem = f"{folder} has changed since the study started"
    check_same(study, now, problem, "restore it, or start another study in another run.dir")
    return study


def _check(config: Config) -> None:
    if not config.only_fills_drawn_masks:
        raise UserError(f"a masking study needs objective mlm, not {config.objective_text}")
    if config.data.valid is None:
        raise UserError("data.valid is not set: a study compares its runs by a held-out data set; name one")
    if config.checkpoint.remote:
        raise UserError("checkpoint.remote is the place of one run alone; set it to null for a study")
    if config.cluster.nodes > 1:
        raise UserError(f"cluster.nodes is {config.cluster.nodes}; each run of a study trains on one node: set it to 1")


def _contents(config: Config, pairs: str | None, finetune: list[str]) -> dict[str, str]:
    """Digests of all data, by name. For a URL of pairs or task files, the URL itself."""
    sources = Sources.open(config)
    held_out = sources.open_held_out(config.data)
    assert held_out
    digests = {"data.train": sources.fingerprint, "data.valid": held_out.manifest.fingerprint}
    if config.model.init:
        from pretrain.model import weights_digest

        digests["model.init"] = weights_digest(config.model.init)
    files = {"--pairs": pairs} if pairs else {}
    words = [word for option in finetune for word in (option.split("=", 1) if option.startswith("--") else [option])]
    files |= {f"--finetune {option}": file for option, file in itertools.pairwise(words) if option in _TASK_FILES}
    return digests | {option: _digest(option, file) for option, file in files.items()}


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

    Raises UserError if the evaluations could not use them.
    """
    if not pairs and not finetune:
        return
    from evaluation.finetuning import FinetuneSettings, open_task
    from evaluation.likelihood import check_pairs
    from pretrain.export import load_tokenizer

    longest = config.model.max_positions or config.longest_row
    folder = Sources.open(config).datasets[0].tokenizer_path
    if pairs:
        check_pairs(pairs, pairs_limit, folder, config.objective_kind.causal, longest)
    if finetune:
        settings = FinetuneSettings(
            task=finetune["task"],
            max_length=min(finetune["max_length"] or longest, longest),
            columns=tuple(finetune["columns"].split(",")) if finetune["columns"] else (),
            limit=finetune["limit"],
            limit_valid=finetune["limit_valid"],
        )
        open_task(settings, finetune["train"], finetune["valid"], load_tokenizer(folder))


def grid(
    strategies: Sequence[str], rates: Sequence[str], replacements: Sequence[str], masking: MaskingConfig
) -> list[Arm]:
    """All combinations, strategies in the outer loop. All other settings come from `masking`.

    Args:
        strategies: values of masking.strategy.
        rates: `0.15`, or `0.3:0.15` for a linear decay over the run.
        replacements: `80/10/10`: percent [MASK], random token, unchanged.

    Raises UserError for an invalid or repeated value.
    """
    for name, given in (("strategies", strategies), ("rates", rates), ("replacements", replacements)):
        if len(set(given)) != len(given):
            raise UserError(f"--{name} {' '.join(given)}: give each once")
    arms = [_arm(*choice, masking) for choice in itertools.product(strategies, rates, replacements)]
    if len({arm.name for arm in arms}) != len(arms):
        raise UserError("two arms of the study are the same: give each rate and replacement in one form alone")
    return arms


def _arm(strategy: str, rate: str, replacement: str, masking: MaskingConfig) -> Arm:
    rate_name, rate_value = _rate(rate)
    shares = _replacement(replacement)
    section = masking.model_dump(mode="json")
    if strategy != "span":
        del section["span"]  # no other strategy reads it
    section |= {"strategy": strategy, "rate": rate_value}
    section["replacement"] |= shares
    suffix = "" if replacement == _USUAL else "-" + replacement.replace("/", "-")
    try:
        checked = MaskingConfig.model_validate(section)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(["masking", *(str(part) for part in problem["loc"] if part != "<name>")])
        reason = value_refusal(key, problem)
        raise UserError(f"{strategy} at rate {rate}, {replacement}: {reason}") from None
    return Arm(f"{strategy}-{rate_name}{suffix}", checked.model_dump(mode="json"))


def _rate(text: str) -> tuple[str, float | dict[str, Any]]:
    """Name of the rate for the arm, and the value of masking.rate."""
    try:
        numbers = [float(part) for part in text.split(":")]
        if not all(0 < number < 1 for number in numbers) or len(numbers) > 2:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--rates {text!r} is not a number between 0 and 1, or two such as 0.3:0.15, for the first and the last "
            f"step. {percent(text.removesuffix('%')) or 'Correct it.'}"
        ) from None
    name = "to".join(f"{number:g}" for number in numbers)
    if len(numbers) == 1:
        return name, numbers[0]
    return name, {"schedule": "linear", "start": numbers[0], "end": numbers[1]}


def _replacement(text: str) -> dict[str, float]:
    match = re.fullmatch(r"(0|[1-9]\d*)/(0|[1-9]\d*)/(0|[1-9]\d*)", text, re.ASCII)
    if not match or sum(map(int, match.groups())) != 100:
        raise UserError(
            f"--replacements {text!r}: write three whole percentages that add up to 100, such as 80/10/10, for what "
            "becomes [MASK], becomes another token, and stays unchanged"
        )
    return {"mask": int(match[1]) / 100, "random": int(match[2]) / 100}
