"""All commands of `maskwright`, assembled."""

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from launchers.commands import (
    analyze,
    checkpoints,
    collocations,
    dataset,
    demo,
    doctor,
    evaluate,
    finetune,
    generate,
    launch,
    launch_hosts,
    launch_list,
    launch_prep,
    logs,
    mask,
    plan,
    prep,
    replay,
    report,
    run,
    status,
    study,
    tokenizer,
    track,
)

_HELP = """Pretrain masked-language-model encoders, from raw text to a Hugging Face model.

Begin with `maskwright demo`: it runs all steps on a small text that comes with the program. docs/quickstart.md
explains each step.

The usual order of commands:

    maskwright tokenizer train --input 'text/*.txt' --out data/tokenizer

    maskwright prep run --input 'text/*.txt' --tokenizer data/tokenizer --out data/books --valid-fraction 0.01

    maskwright doctor configs/bert-mini.yaml

    maskwright train configs/bert-mini.yaml

    maskwright status runs/bert-mini

    maskwright export runs/bert-mini

`maskwright COMMAND -h` shows the options and examples of a command.
"""

app = typer.Typer(
    name="maskwright",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tokenizer.tokenizer_app, name="tokenizer")
for finished in (dataset.info, dataset.show, dataset.verify, collocations.collocations):
    prep.prep_app.command()(finished)
app.add_typer(prep.prep_app, name="prep")
watching = (status.status, logs.logs, report.report, checkpoints.checkpoints, replay.replay)
results = (run.export, evaluate.evaluate, finetune.finetune, generate.generate)
for command in (demo.demo, doctor.doctor, plan.plan, run.train, status.stop, *watching, *results):
    app.command()(command)
app.add_typer(mask.mask_app, name="mask")
app.add_typer(analyze.analyze_app, name="analyze")
app.add_typer(study.study_app, name="study")
app.add_typer(track.track_app, name="track")
launch.launch_app.command()(launch_prep.prep)
launch.launch_app.command("list")(launch_list.list_runs)
launch.launch_app.command()(launch_hosts.hosts)
app.add_typer(launch.launch_app, name="launch")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"maskwright {version('maskwright')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


def _with_version(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has the option --version, too."""
    signature = inspect.signature(command)
    option = inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Version)

    def run(version: bool = False, **options: Any) -> None:
        command(**options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {}  # typer prefers them to those of the signature, by name
    run.__signature__ = inspect.Signature([*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run


def _group(version: Version = False) -> None:
    """Callback of a command group. It does nothing."""


def _add_version(group: typer.Typer) -> None:
    """Give a group, its commands and the groups in it the option --version."""
    group.callback()(_group)
    for command in group.registered_commands:
        if command.callback is not None:
            command.callback = _with_version(command.callback)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _add_version(inner.typer_instance)


_add_version(app)
