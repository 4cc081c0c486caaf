"""The data sets of a config: whole, and made for each other."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_prep.errors import UserError
from data_prep.remote import is_url, shown
from launchers.doctor.finding import Check, Finding
from pretrain.config import Config

_SHOWN = 5  # problems of a data set; `maskwright prep verify` lists all
_DEEP_SECONDS = 24 * 3600.0


def locations(config: Config) -> dict[str, str]:
    """Where each data set of a run lies, by what the config calls it."""
    sources = config.data.train
    found = {"data.train" if len(sources) == 1 else f"data.train.{n}": one.path for n, one in enumerate(sources)}
    if config.data.valid is not None:
        found["data.valid"] = config.data.valid
    return found


def checks(config: Config, deep: bool) -> list[Check]:
    """Each data set, and all together as the run will use them; `deep` reads every byte."""
    found = []
    for name, location in locations(config).items():
        found.append(Check("data", name, partial(_opens, config, name, location), seconds=60))
        if deep:
            checksums = f"{name}: checksums"
            found.append(Check("data", checksums, partial(_deep, checksums, location), seconds=_DEEP_SECONDS))
    return [*found, Check("data", "run", lambda: _run(config), seconds=60)]


def _opens(config: Config, name: str, location: str) -> Iterator[Finding]:
    from data_prep.reader import Dataset

    dataset = Dataset(location, config.data.cache_dir, int(config.data.cache_gb * 1e9))
    dataset.check_files()
    totals, shards = dataset.manifest.totals, dataset.manifest.shards
    value = f"{len(shards):,} shards, {totals.tokens:,} tokens in {totals.documents:,} documents, {shown(location)}"
    yield Finding(name, "ok", value)


def _deep(name: str, location: str) -> Iterator[Finding]:
    from data_prep.spelling import printable
    from data_prep.verify import verify

    if is_url(location):
        yield Finding(name, "skipped", f"{shown(location)} is not on this machine")
        return
    yield judge_problems(name, location, [printable(problem) for problem in verify(Path(location))])


def judge_problems(name: str, location: str, problems: list[str]) -> Finding:
    """What the deep check of a data set found."""
    if not problems:
        return Finding(name, "ok", "every byte is what the manifest says")
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    advice = f"restore the files or prepare the data again; `maskwright prep verify {location}` lists all"
    return Finding(name, "fail", "; ".join(problems[:_SHOWN]) + more, advice)


def _run(config: Config) -> Iterator[Finding]:
    from pretrain.preflight import check_start

    try:
        check_start(config, 1)
    except UserError as error:
        yield Finding("run", "fail", str(error))
        return
    yield Finding("run", "ok", "data sets, model and config go together")
