"""Build and check a study from its arms and options. All errors are reported before any training."""

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError, working_directory
from data_prep.common.files import sha256_file
from data_prep.sources import find_inputs
from data_prep.storage import json_line_files
from evaluation.study.study_arms import Sweep, arm_words
from evaluation.study.study_file import Arm, Study, check_same, continued, deciding
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.data import Sources
from pretrain.masking import cached_weights
from pretrain.model import weights_digest
from pretrain.planning import check_start, print_warnings

_TASK_FILES = ("--train", "--valid")  # options of `maskwright finetune`
_SEQ_LEN = 128  # tokens a row: of `maskwright evaluate`, by default


def define(
    sweep: Sweep,
    baseline: str | None,
    seeds: int,
    stop_early: bool,
    processes: int,
    pairs: str | None,
    pairs_limit: int | None,
    finetune: Sequence[str],
) -> Study:
    """Define the study of the arms, or continue the study in run.dir, also with more seeds.

    The primary measure is the downstream score if the study fine-tunes, else minimal pairs if it has them, else the
    held-out loss. So it is fixed before any result.

    Raises UserError if the config or the options do not give a valid study, it cannot be trained, or run.dir holds
    another study.
    """
    if pairs_limit is not None and pairs is None:
        raise UserError("--pairs-limit says how many of --pairs are taken: name a file of pairs, or leave it out")
    names = [*sweep.overrides]
    if baseline is not None and baseline not in names:
        raise UserError(f"--baseline {baseline} is not one of the arms, which are {', '.join(names)}")
    warnings: list[str] = []
    for name, config in zip(names, sweep.configs, strict=True):
        _check(config)
        try:
            warnings += check_start(config, processes)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    print_warnings(warnings)
    first, lengths = sweep.configs[0], {_longest(config) for config in sweep.configs}
    is_continued = (first.run.dir / "study.json").exists()
    finetune = _with_commits(finetune, Study.open(first.run.dir).finetune if is_continued else ())
    assert first.data.valid is not None  # checked above
    study = Study(
        folder=first.run.dir,
        arms=_arms(sweep.overrides, sweep.configs),
        baseline=baseline or names[0],
        about=_in_common(sweep.configs),
        seeds=seeds,
        stop_early=stop_early,
        processes=processes,
        primary="downstream" if finetune else "pairs" if pairs else "held_out",
        losses=len({config.objective_kind.view for config in sweep.configs}) == 1,
        data=first.data.valid,
        seq_len=min(_SEQ_LEN, *lengths) if len(lengths) > 1 else None,
        pairs=pairs,
        pairs_limit=pairs_limit,
        finetune=finetune,
        contents=_contents(first, pairs, finetune),
    )
    if study.primary == "held_out" and not study.losses:
        raise UserError(
            "Some arms predict tokens from both sides and others from the left: their losses cannot be compared. Add "
            "--pairs or --finetune."
        )
    return continued(study)


def _with_commits(finetune: Sequence[str], before: Sequence[str]) -> tuple[str, ...]:
    """Options of a fine-tuning. Data sets of the Hub get their commit, or that of the study before with the same ones.

    Raises UserError if a data set cannot be found.
    """
    words = [*finetune]
    for number, word in enumerate(finetune):
        option, hub, name = word.partition("hub:")
        if hub and option in ("", *(f"{file}=" for file in _TASK_FILES)):
            earlier = before[number] if number < len(before) else ""
            is_same = re.match(f"{re.escape(word)}([?&]|$)", earlier)  # its location ends with split and commit
            words[number] = earlier if is_same else option + find_inputs([hub + name])[0].location
    return tuple(words)


def open_unchanged(folder: Path) -> Study:
    """Open the study in a folder to resume it.

    Raises UserError if there is no study, or data, files or config have changed since its start.
    """
    study = Study.open(folder)
    overrides = {arm.name: arm.overrides for arm in study.arms}
    configs = [load_config(folder / "config.yaml", arm_words(own)) for own in overrides.values()]
    for config in configs:
        _check(config)
    changes = {"arms": _arms(overrides, configs), "contents": _contents(configs[0], study.pairs, study.finetune)}
    problem = f"{folder} has changed since the study started"
    check_same(
        study, study.model_copy(update=changes), problem, "restore it, or start another study in another run.dir"
    )
    return study


def _check(config: Config) -> None:
    if config.data.valid is None:
        raise UserError("data.valid is not set: a study compares its runs by a held-out data set; name one")
    if config.checkpoint.remote:
        raise UserError("checkpoint.remote is the place of one run alone; set it to null for a study")
    if config.cluster.nodes > 1:
        raise UserError(f"cluster.nodes is {config.cluster.nodes}; each run of a study trains on one node: set it to 1")


def _longest(config: Config) -> int:
    return config.model.max_positions or config.longest_row


def _in_common(configs: Sequence[Config]) -> str:
    """The settings that all arms share, in words."""
    parts = [
        [config.model.title for config in configs],
        [config.objective_text for config in configs],
        [f"{config.train.steps:,} steps" for config in configs],
        [f"batches of {config.train.global_batch_size} rows" for config in configs],
        [f"rows of {config.data.seq_len} tokens" for config in configs],
    ]
    return ", ".join(part[0] for part in parts if len(set(part)) == 1)


def _arms(overrides: Mapping[str, dict[str, Any]], configs: Sequence[Config]) -> tuple[Arm, ...]:
    """The arms, with digests of what each trains on and starts from. Raises UserError if two arms are equal."""
    arms, weights = list[Arm](), cache(weights_digest)  # which reads gigabytes, usually the same for all arms
    for (name, own), config in zip(overrides.items(), configs, strict=True):
        contents = {"data.train": Sources.open(config).fingerprint}
        if config.model.init:
            contents["model.init"] = weights(config.model.init)
        lists = [phase.config.masking.selection.weights for phase in config.run_phases]
        contents |= {f"masking.selection.weights {path}": cached_weights(path).digest for path in lists if path}
        arm = Arm(name, own, deciding(config) | {"contents": contents})
        if same := next((other.name for other in arms if other.config == arm.config), None):
            raise UserError(f"--over: {same} and {name} are the same config. Write other values.")
        arms.append(arm)
    return tuple(arms)


def _contents(config: Config, pairs: str | None, finetune: Sequence[str]) -> dict[str, str]:
    """Digests of what all models are evaluated on, by name. For a URL or a data set of the Hub, its name itself."""
    held_out = Sources.open(config).open_held_out(config.data)
    assert held_out
    files = {"--pairs": pairs} if pairs else {}
    words = [word for option in finetune for word in (option.split("=", 1) if option.startswith("--") else [option])]
    files |= {f"--finetune {option}": file for option, file in itertools.pairwise(words) if option in _TASK_FILES}
    digests = {option: _digest(option, file) for option, file in files.items()}
    return {"data.valid": held_out.manifest.fingerprint} | digests


def _digest(option: str, file: str) -> str:
    """The digest of a file, or the digests of a folder's files."""
    if "://" in file or file.startswith("hub:"):
        return file
    try:
        return " ".join(sha256_file(Path(part)) for part in json_line_files(file))
    except OSError as error:
        where = f"{option} {file}{working_directory(file)}"
        raise UserError(f"{where} cannot be read: {error.strerror}. Correct the path.") from None


def check_inputs(
    configs: Sequence[Config], pairs: str | None, pairs_limit: int | None, finetune: Mapping[str, Any]
) -> None:
    """Read minimal pairs and fine-tuning examples as the evaluations do after training.

    Args:
        configs: of the arms.
        pairs_limit: per UID; None: all.
        finetune: parameters of `maskwright finetune`, by name; empty: no fine-tuning.

    Raises UserError if the evaluations could not use them.
    """
    if not pairs and not finetune:
        return
    from evaluation.finetuning import FinetuneSettings, open_task
    from evaluation.likelihood import check_pairs
    from pretrain.export import load_tokenizer

    longest = min(map(_longest, configs))
    folder = Sources.open(configs[0]).datasets[0].tokenizer_path
    if pairs:
        for causal in {config.objective_kind.causal for config in configs}:
            check_pairs(pairs, pairs_limit, folder, causal, longest)
    if finetune:
        settings = FinetuneSettings(
            task=finetune["task"],
            max_length=min(finetune["max_length"] or longest, longest),
            columns=tuple(finetune["columns"].split(",")) if finetune["columns"] else (),
            limit=finetune["limit"],
            limit_valid=finetune["limit_valid"],
        )
        open_task(settings, finetune["train"], finetune["valid"], load_tokenizer(folder))
