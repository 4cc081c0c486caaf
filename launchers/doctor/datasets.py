"""Checks of the data sets of a config, and the preflight checks of its run."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from data_prep.errors import UserError
from data_prep.folders import is_run
from data_prep.remote import is_url, shown
from data_prep.spelling import printable
from launchers.doctor.finding import Check
from pretrain.config import Config
from pretrain.node_checks import Finding, judge
from pretrain.overview import RunSummary, summarize
from pretrain.preflight import CHECKS

_SHOWN = 5  # problems of a data set; `maskwright prep verify` lists all
_DEEP_SECONDS = 24 * 3600.0


def locations(config: Config) -> dict[str, str]:
    """The location of each data set of a run, by its name in the config."""
    sources = config.data.train
    found = {"data.train" if len(sources) == 1 else f"data.train.{n}": one.path for n, one in enumerate(sources)}
    return found | ({} if config.data.valid is None else {"data.valid": config.data.valid})


def checks(config: Config, deep: bool) -> list[Check]:
    """Each data set, and the preflight checks; `deep` reads every byte."""
    found = []
    for name, location in locations(config).items():
        found.append(Check("data", name, partial(_opens, config, name, location), seconds=60))
        if deep:
            checksums = f"{name}: checksums"
            found.append(Check("data", checksums, partial(_deep, checksums, location), seconds=_DEEP_SECONDS))
    return [*found, Check("run", "preflight", lambda: _preflight(config), seconds=120)]


def _opens(config: Config, name: str, location: str) -> Iterator[Finding]:
    from data_prep.reader import Dataset

    dataset = Dataset(location, config.data.cache_dir, int(config.data.cache_gb * 1e9))
    dataset.check_files()
    totals, shards = dataset.manifest.totals, dataset.manifest.shards
    value = f"{len(shards):,} shards, {totals.tokens:,} tokens in {totals.documents:,} documents, {shown(location)}"
    yield Finding(name, "ok", value)


def _deep(name: str, location: str) -> Iterator[Finding]:
    from data_prep.verify import verify

    if is_url(location):
        yield Finding(name, "skipped", f"{shown(location)} is not on this machine")
        return
    problems = [printable(problem) for problem in verify(Path(location))]
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    advice = f"restore the files or prepare the data again; `maskwright prep verify {location}` lists all"
    value = "; ".join(problems[:_SHOWN]) + more or "every byte matches the manifest"
    yield judge(name, value, (bool(problems), "fail", advice))


def judge_run(summary: RunSummary) -> Finding:
    """The run that the run folder holds already."""
    last = summary.last_checkpoint
    saved = f"; last checkpoint: step {last.step:,}{f', {last.problem}' if last.problem else ''}" if last else ""
    return judge(
        "state",
        f"{summary.state}: {summary.reason}{saved}",
        (summary.state in ("starting", "running"), "warn", "it is training now; a second start is refused"),
        (last is not None and last.problem is not None, "warn", "the run resumes from an older checkpoint"),
    )


def _preflight(config: Config) -> Iterator[Finding]:
    if is_run(config.run.dir):
        yield judge_run(summarize(config.run.dir))
    for check in CHECKS:
        try:
            check.run(config, 1)
        except UserError as error:
            yield Finding(check.name, "fail", str(error))
        else:
            yield Finding(check.name, "ok", check.sound)
