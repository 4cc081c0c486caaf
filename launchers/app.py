"""All commands of `maskwright`, assembled."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from launchers.commands import (
    analyze_layers,
    checkpoints,
    demo,
    doctor,
    evaluate,
    export,
    finetune,
    generate,
    launch_hosts,
    launch_list,
    launch_prep,
    launch_slurm,
    logs,
    mask_show,
    plan,
    prep_collocations,
    prep_info,
    prep_merge,
    prep_plan,
    prep_resolve,
    prep_run,
    prep_scan,
    prep_show,
    prep_task,
    prep_verify,
    replay,
    report,
    status,
    stop,
    study_masking,
    study_report,
    study_run,
    study_time,
    tokenizer_train,
    track_models,
    track_register,
    track_sync,
    train,
)

_HELP = """Pretrain masked-language-model encoders, from raw text to a Hugging Face model.

Start with `maskwright demo`. It runs all steps on a small bundled text. docs/quickstart.md explains each step.

The usual order of commands:

    maskwright tokenizer train --input 'text/*.txt' --out data/tokenizer

    maskwright prep run --input 'text/*.txt' --tokenizer data/tokenizer --out data/books --valid-fraction 0.01

    maskwright doctor configs/bert-mini.yaml

    maskwright train configs/bert-mini.yaml

    maskwright status runs/bert-mini

    maskwright export runs/bert-mini

`maskwright COMMAND -h` shows the options and examples of a command.
"""

_TOKENIZER_HELP = """Train a tokenizer.

Example:

    maskwright tokenizer train --input 'text/*.txt' --vocab-size 30522 --out data/tokenizer
"""

_PREP_HELP = """Turn raw text into verified, pre-tokenized shards.

Examples:

    maskwright prep run --input 'text/*.txt' --tokenizer data/tokenizer --out data/books --valid-fraction 0.01

    maskwright prep info data/books/train

    maskwright prep show data/books/train 0
"""

_MASK_HELP = """Show how a masking strategy masks a text.

Example:

    maskwright mask show "The old ship left the harbour." --tokenizer data/tokenizer
"""

_TRACK_HELP = """Send metrics and models of a run to MLflow.

Examples:

    maskwright track sync runs/demo

    maskwright track register runs/demo --name demo-bert --alias champion
"""

_LAUNCH_HELP = """Submit a run to a cluster.

Examples:

    maskwright launch slurm configs/bert-base.yaml --nodes 4 --gpus-per-node 8 --time 24:00:00

    maskwright launch hosts configs/bert-base.yaml --hostfile hosts --nodes 2 --gpus-per-node 8
"""

_ANALYZE_HELP = """Analyze trained models.

Example:

    maskwright analyze layers runs/books --data data/books/valid --out layers
"""

_STUDY_HELP = """Compare masking strategies on your own data, with several seeds.

Examples:

    maskwright study masking configs/bert-mini.yaml --dry-run

    maskwright study masking configs/bert-mini.yaml --seeds 5
"""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"maskwright {version('maskwright')}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Global options. The commands do the work."""


def _group(help_text: str, **commands: Callable[..., None]) -> typer.Typer:
    """Build a group of commands from their names and functions."""
    group = typer.Typer(help=help_text, no_args_is_help=True)
    for name, command in commands.items():
        group.command(name)(command)
    return group


app = typer.Typer(
    name="maskwright",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(_main)
app.add_typer(_group(_TOKENIZER_HELP, train=tokenizer_train.tokenizer_train), name="tokenizer")
app.add_typer(
    _group(
        _PREP_HELP,
        run=prep_run.prep_run,
        plan=prep_plan.prep_plan,
        scan=prep_scan.prep_scan,
        resolve=prep_resolve.prep_resolve,
        task=prep_task.prep_task,
        merge=prep_merge.prep_merge,
        info=prep_info.prep_info,
        show=prep_show.prep_show,
        verify=prep_verify.prep_verify,
        collocations=prep_collocations.prep_collocations,
    ),
    name="prep",
)
watching = (status.status, logs.logs, report.report, checkpoints.checkpoints, replay.replay)
results = (export.export, evaluate.evaluate, finetune.finetune, generate.generate)
for command in (demo.demo, doctor.doctor, plan.plan, train.train, stop.stop, *watching, *results):
    app.command()(command)
app.add_typer(_group(_MASK_HELP, show=mask_show.mask_show), name="mask")
app.add_typer(_group(_ANALYZE_HELP, layers=analyze_layers.analyze_layers), name="analyze")
app.add_typer(
    _group(
        _STUDY_HELP,
        masking=study_masking.study_masking,
        run=study_run.study_run,
        time=study_time.study_time,
        report=study_report.study_report,
    ),
    name="study",
)
app.add_typer(
    _group(
        _TRACK_HELP,
        sync=track_sync.track_sync,
        models=track_models.track_models,
        register=track_register.track_register,
    ),
    name="track",
)
app.add_typer(
    _group(
        _LAUNCH_HELP,
        slurm=launch_slurm.launch_slurm,
        prep=launch_prep.launch_prep,
        list=launch_list.launch_list,
        hosts=launch_hosts.launch_hosts,
    ),
    name="launch",
)
