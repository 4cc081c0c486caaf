"""The hash chain of a run: text inputs, shards, config, batches, checkpoints and exports, verified without training."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_prep.errors import DamagedData, UserError, reason_of
from data_prep.format import Dataset
from data_prep.inspection import verify
from data_prep.reading import typed
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config import Config, load_config
from pretrain.data import Sources
from pretrain.export import ExportRecord
from pretrain.guards import state_problem
from pretrain.run import JournalReader, RunFolder, chained, step_name

_EARLIER = "written by an earlier version of Maskwright"
_MOST_NAMED = 5  # problems of one link
State = Literal["ok", "changed", "not found", "not recorded"]


@dataclass(frozen=True)
class Link:
    """A link of the chain. `place` is a file or folder; `found` are its problems, or what was verified."""

    part: str
    place: str
    state: State
    found: Sequence[str] = ()

    @property
    def is_broken(self) -> bool:
        return self.state in ("changed", "not found")

    def __str__(self) -> str:
        more = [f"and {len(self.found) - _MOST_NAMED} more"] if len(self.found) > _MOST_NAMED else []
        found = "; ".join([*self.found[:_MOST_NAMED], *more])
        return f"{self.part} {self.place}: {self.state}{f' ({found})' if found else ''}"


def verify_chain(run: Path, workers: int, progress: Callable[[int, int], None]) -> Iterator[Link]:
    """Verify each link, from the text inputs to the exports. Nothing is loaded into a model, trained or written.

    Args:
        workers: processes that read shards. progress: receives the bytes read of a data set, and all its bytes.

    Raises:
        UserError: if config.yaml cannot be used.
    """
    folder = RunFolder(run)
    config, saved = load_config(folder.config), sorted(checkpoint.committed(folder.checkpoints))
    newest = next((found for _, path in reversed(saved) if isinstance(found := _checked(path), Checkpoint)), None)
    recorded = _recorded_inputs(newest)
    locations = dict.fromkeys(source.path for phase in config.run_phases for source in phase.config.data.train)
    for number, location in enumerate(locations):
        yield from _data_links(location, recorded[number : number + 1], workers, progress)
    yield _config_link(folder, config, newest)
    batches, chains = _journal_link(folder.journal)
    yield batches
    for _, path in saved:
        yield _checkpoint_link(path, chains)
    for path in sorted(folder.exports.iterdir()) if folder.exports.is_dir() else ():
        if path.is_dir() and not path.name.startswith("."):
            yield _export_link(path, folder, chains)


def _checked(path: Path) -> Checkpoint | str:
    """The manifest of a checkpoint, whose files are not read; or its problem."""
    try:
        saved = checkpoint.read(path)
    except UserError as error:
        return str(error)
    return state_problem(saved) or saved


def _recorded_inputs(saved: Checkpoint | None) -> list[str]:
    """The digest of the records of text inputs, of each data set; empty if no version recorded it."""
    try:
        found: list[str] = typed(list[str], saved.state["data"]["sources_sha256"]) if saved else []
    except (KeyError, TypeError, ValueError):
        return []
    return found


def _unusable(part: str, place: str, error: UserError) -> Link:
    return Link(part, place, "changed" if isinstance(error, DamagedData) else "not found", [str(error)])


def _data_links(
    location: str, recorded: list[str], workers: int, progress: Callable[[int, int], None]
) -> Iterator[Link]:
    """The links of a data set. recorded: the digest of the records of its text inputs, if there is one."""
    try:
        dataset = Dataset(location)
    except UserError as error:
        yield from (_unusable(part, location, error) for part in ("text inputs", "shards"))
        return
    inputs = f"records of inputs: {len(dataset.manifest.sources)}"
    if not recorded:
        yield Link("text inputs", location, "not recorded", [_EARLIER])
    elif recorded != [dataset.manifest.sources_sha256]:
        problem = "manifest.json has other records of its inputs than when the run read it"
        yield Link("text inputs", location, "changed", [problem])
    else:
        yield Link("text inputs", location, "ok", [inputs])
    try:
        problems = list(verify(dataset.path, workers, progress))
        yield Link("shards", location, "changed" if problems else "ok", problems)
    except UserError as error:
        yield _unusable("shards", location, error)


def _config_link(folder: RunFolder, config: Config, saved: Checkpoint | None) -> Link:
    """Compare data and settings with those of the last start and of a checkpoint."""
    place = folder.config.name
    started = " ".join(str(one.get("fingerprint")) for one in (folder.read_environment() or {}).get("data", []))
    if not started and not saved:
        return Link("config", place, "not recorded", [_EARLIER])
    try:
        data = Sources.open(config)
        found = []
        if started and started != data.fingerprint:
            found.append(f"{folder.environment.name} has the data fingerprint {started}, and it is {data.fingerprint}")
        if saved:
            then = Identity.stored(saved)
            init = then.settings.get("model.init (weights)")  # its file may no longer exist
            found += then.changes(Identity.of(config, data, saved.step, init)).values()
    except UserError as error:
        return _unusable("config", place, error)
    return Link("config", place, "changed" if found else "ok", found)


def _journal_link(journal: Path) -> tuple[Link, dict[int, str]]:
    """Verify the chain of batches; also the chain of each step, empty if an earlier version wrote it."""
    chains: dict[int, str] = {}
    found = []
    try:
        for _, entry in JournalReader(journal).lines():
            if not entry or not entry.batch:
                continue
            step, chain = entry.step, str(entry.batch.get("chain", ""))
            before = chains.get(step - 1, "")
            if chain and chain != chained(before, entry.batch):
                problem = f"the batch of step {step} has another hash than recorded"
                lost = f"the batch of step {step - 1} is missing, or its hash"
                found.append(problem if before or step == 1 else lost)
            chains[step] = chain
    except OSError as error:
        return Link("batches", journal.name, "not found", [reason_of(error)]), {}
    recorded = sum(map(bool, chains.values()))
    if not recorded:
        return Link("batches", journal.name, "not recorded", [_EARLIER]), chains
    state: State = "changed" if found else "ok"
    return Link("batches", journal.name, state, found or [f"{recorded} of {len(chains)} steps have a hash"]), chains


def _checkpoint_link(path: Path, chains: dict[int, str]) -> Link:
    saved = _checked(path)
    if isinstance(saved, str) or (problem := checkpoint.verify(path)):
        return Link("checkpoint", path.name, "changed", [saved if isinstance(saved, str) else str(problem)])
    if not (chain := saved.state.get("chain")):
        return Link("checkpoint", path.name, "not recorded", [f"its files are ok; its batches: {_EARLIER}"])
    if chains.get(saved.step) != chain:
        return Link("checkpoint", path.name, "changed", [f"the journal has other batches up to step {saved.step}"])
    return Link("checkpoint", path.name, "ok")


def _export_link(path: Path, folder: RunFolder, chains: dict[int, str]) -> Link:
    try:
        record = ExportRecord.read(path)
        if record is None:
            return Link("export", path.name, "not recorded", [f"{_EARLIER}, or not of one checkpoint"])
        found = record.changed_files(path)
        made_of = folder.checkpoints / step_name(record.step)
        if checkpoint.step_of(path.name[: len(made_of.name)]) not in (None, record.step):
            found.append(f"it was made of {made_of.name}")
        elif made_of.is_dir() and checkpoint.manifest_sha256(made_of) != record.checkpoint_sha256:
            found.append(f"it was made of another checkpoint than {made_of.name}")
        elif not made_of.is_dir() and record.chain != chains.get(record.step, ""):
            found.append(f"it was made of other batches than the journal has up to step {record.step}")
    except UserError as error:
        return Link("export", path.name, "changed", [str(error)])
    except OSError as error:
        return Link("export", path.name, "changed", [f"{error.filename}: {reason_of(error)}"])
    if not found and not made_of.is_dir():
        note = f"{made_of.name} is no longer kept; compared with the journal"
        return Link("export", path.name, "ok" if record.chain else "not found", [note])
    return Link("export", path.name, "changed" if found else "ok", found)
