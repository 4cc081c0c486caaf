"""`maskwright publish`: upload a model with its model card to the Hugging Face Hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.common.files import check_writable, free_folder
from data_prep.storage import is_run
from launchers.arguments import YesOption, local
from pretrain.checkpoint import committed
from pretrain.run import RunFolder, step_name

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_MAIN = "main"  # the revision that a name without a revision means


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
    from pretrain.export import HubRepository, check_model, revision_of

    check_model(model)
    if every and not is_run(model):
        raise UserError(f"{model} is one model. Remove --every-checkpoint, or name a run folder.")
    HubRepository.check_name(to)
    if out:
        check_writable(free_folder(out))
    hub = None if out else HubRepository(to)
    exports = _exports(model, every)
    figures = _figures(results or [], exports, model)
    stated = [_stated(text) for text in data_licences or []]
    revisions = [revision_of(export, name, to, figures[name], licence, stated, yes) for name, export in exports.items()]
    if hub:
        hub.create(private, revisions[0].card)
    for revision in revisions:
        size = f"{len(revision.files)} files, {revision.bytes / 1e6:.1f} MB"
        if hub:
            print(f"{revision.name}: {size} {'uploaded' if hub.upload(revision) else 'up to date'}", flush=True)
        elif out:
            revision.write(out / revision.name)
            print(f"{revision.name}: {size} in {out / revision.name}", flush=True)
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
    from pretrain.export import exported_folder, model_folder

    steps = sorted(step for step, _ in committed(RunFolder(model).checkpoints)) if every else []
    return {step_name(step): exported_folder(model, step) for step in steps} | {_MAIN: model_folder(model)}


def _figures(results: list[Path], exports: dict[str, Path], model: Path) -> dict[str, list["EvalResult"]]:
    """The figures of each revision. Raises UserError for a file without any.

    An evaluation of a run is one of its newest checkpoint, if it is newer than the export of this checkpoint.
    """
    figures: dict[str, list[EvalResult]] = {name: [] for name in exports}
    if not results:
        return figures
    from pretrain.export import figures_in, model_digest

    newest = exports[_MAIN]
    digests = {name: model_digest(export) for name, export in exports.items()}
    for file in results:
        after = file.is_file() and file.stat().st_mtime >= newest.stat().st_mtime
        count = 0
        for name, export in exports.items():
            paths = [export, model] if after and export == newest else [export]
            of_file = figures_in(file, digests[name], paths)
            figures[name] += of_file
            count += len(of_file)
        if not count:
            raise UserError(f"{file} has no results of {model}. Evaluate this model, or remove --results {file}.")
    return figures
