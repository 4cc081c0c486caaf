"""`maskwright publish`: upload a model with its model card to the Hugging Face Hub."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.common.files import check_writable
from data_prep.storage import is_run
from launchers.commands.arguments import YesOption, check_inputs, local
from pretrain.checkpoint import committed
from pretrain.run import RunFolder, step_name

if TYPE_CHECKING:
    from pretrain.export import Figure


def publish(
    model: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="run folder, or Hugging Face model folder")],
    to: Annotated[str, typer.Option(metavar="OWNER/NAME", help="repository on the Hub; created if it is missing")],
    every: Annotated[
        bool, typer.Option("--every-checkpoint", help="also a branch such as step-00001000 for each checkpoint")
    ] = False,
    private: Annotated[bool, typer.Option("--private", help="create a private repository")] = False,
    results: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="results that evaluate or finetune wrote with --json; may be repeated"),
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="licence of the model, for example apache-2.0")
    ] = None,
    data_licences: Annotated[
        list[str] | None,
        typer.Option(
            "--data-license", metavar="[SOURCE=]TEXT", help="licence of the training text, or of one source of it"
        ),
    ] = None,
    watts: Annotated[
        float | None,
        typer.Option(min=1, help="power of a GPU (without GPUs: of a machine), to estimate the energy of the training"),
    ] = None,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write the files to --out, and upload nothing")] = False,
    out: Annotated[
        Path | None, typer.Option(parser=local, metavar="DIR", help="with --dry-run: new folder, with one per revision")
    ] = None,
) -> None:
    """Upload a model with its model card to the Hugging Face Hub.

    Log in with `hf auth login`, or set HF_TOKEN. After an interruption, run the same command again: it uploads what is
    missing.

    Examples:

        maskwright publish runs/demo --to your-name/demo --dry-run --out publication
        maskwright publish runs/demo --to your-name/demo --private
        maskwright publish runs/demo --to your-name/demo --every-checkpoint --license apache-2.0
        maskwright publish models/bert --to your-name/bert --results books.json --results ner.json
    """
    if dry_run != (out is not None):
        raise UserError("--dry-run and --out belong together. Name both, or neither.")
    check_inputs([model])
    if every and not is_run(model):
        raise UserError(f"{model} is one model. Remove --every-checkpoint, or name a run folder.")
    from pretrain.export import HubRepository, check_repository, free_folder

    check_repository(to)
    if out:
        check_writable(free_folder(out))
    hub = None if out else HubRepository(to, lambda line: print(line, file=sys.stderr, flush=True))
    exports = _exports(model, every)
    figures = _figures(results or [], exports, model)

    from pretrain.export import revision_of

    stated = [_stated(text) for text in data_licences or []]
    revisions = [
        revision_of(export, name, to, figures[name], licence, watts, stated, yes) for name, export in exports.items()
    ]
    if hub:
        hub.create(private)
    for one in revisions:
        size = f"{len(one.files)} files, {one.bytes / 1e6:.1f} MB"
        if hub:
            count = hub.upload(one.name, one.files)
            print(f"{one.name}: {f'uploaded {count} of {size}' if count else 'up to date'}", flush=True)
        elif out:
            one.write(out / one.name)
            print(f"{one.name}: {size} in {out / one.name}", flush=True)
    if hub:
        print(hub.page)


def _stated(text: str) -> tuple[str, str]:
    """(source, licence) of a value of --data-license."""
    source, equals, licence = text.rpartition("=")
    if not licence.strip() or (equals and not source.strip()):
        raise UserError(f"--data-license is {text!r}. Write a licence, or SOURCE=LICENCE.")
    return (source.strip() or "all text", licence.strip())


def _exports(model: Path, every: bool) -> dict[str, Path]:
    """The folder of each revision. main, with the newest checkpoint, is the last one."""
    from pretrain.export import MAIN, exported_folder, model_folder

    steps = sorted(step for step, _ in committed(RunFolder(model).checkpoints)) if every else []
    return {step_name(step): exported_folder(model, step) for step in steps} | {MAIN: model_folder(model)}


def _figures(results: list[Path], exports: dict[str, Path], model: Path) -> dict[str, list["Figure"]]:
    """The figures of each revision. Raises UserError for a file without any.

    An evaluation of a run is one of its newest checkpoint, if it is newer than the export of this checkpoint.
    """
    from pretrain.export import MAIN

    found: dict[str, list[Figure]] = {name: [] for name in exports}
    newest = exports[MAIN]
    for file in results:
        from evaluation.published_results import figures_in

        after = file.is_file() and file.stat().st_mtime >= newest.stat().st_mtime
        names = {name: [model] if after and export == newest else [] for name, export in exports.items()}
        of_file = {name: figures_in(file, export, names[name]) for name, export in exports.items()}
        if not any(of_file.values()):
            raise UserError(f"{file} has no results of {model}. Evaluate this model, or remove --results {file}.")
        found = {name: figures + of_file[name] for name, figures in found.items()}
    return found
