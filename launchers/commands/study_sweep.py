"""`maskwright study sweep`: compare values of any keys of the config on your data."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.common.errors import UserError
from launchers.arguments import Overrides, PairsOption, ProcessCount
from launchers.commands.study_run import run_to_report
from launchers.display import CommandProgress


def study_sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML config of a run; run.dir is the study folder")],
    over: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE,...", help="values of a key; repeat it for more keys, in all combinations"),
    ],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="seeds per arm; you can raise it later")] = 3,
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="no more seeds for arms that are worse than the best, from 2 seeds on")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="arm to compare with, for example lr=0.001; the first by default")
    ] = None,
    pairs: PairsOption = None,
    pairs_limit: Annotated[int | None, typer.Option(min=1, help="pairs per UID; all by default")] = None,
    finetune: Annotated[
        str,
        typer.Option(
            metavar="OPTIONS",
            help="options of `maskwright finetune`, for example '--task classification --train F --valid F'",
        ),
    ] = "",
    procs: ProcessCount = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the arms and steps, with --slurm the job scripts, and train nothing")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="submit a Slurm job array with the settings of cluster:")
    ] = False,
) -> None:
    """Train each combination of values with several seeds, evaluate all models the same way, report the differences.

    Run the same command to resume, also with more `--seeds`. The folder run.dir holds the runs, report.html, report.md
    and report.json.

    Exit code: 0 done, 75 stopped on request (Ctrl-C, SIGTERM), 1 if the study or a run failed.

    Examples:

        maskwright study sweep configs/demo.yaml run.dir=runs/study train.steps=60 --seeds 2 --over optim.lr=1e-3,4e-3
        maskwright study sweep configs/bert-mini.yaml --over optim.lr=3e-4,1e-3,3e-3 --over model.size=tiny,mini
        maskwright study sweep configs/bert-mini.yaml --over masking.strategy=token,span --pairs blimp.jsonl.zst
        maskwright study sweep my.yaml --over "masking.rate=0.15,{schedule: linear, start: 0.3, end: 0.15}"
        maskwright study sweep configs/bert-mini.yaml --over optim.lr=1e-3,2e-3 --slurm cluster.partition=gpu
    """
    from evaluation.study import check_inputs, define, open_sweep
    from launchers.local import gpu_count

    if slurm and stop_early:
        raise UserError("--stop-early is for one machine: --slurm queues all runs together. Remove one of the two.")
    sweep = open_sweep(config, overrides or [], over)
    settings = sweep.configs[0]
    processes = procs or (settings.cluster.gpus_per_node if slurm else max(1, gpu_count()))
    try:
        words = shlex.split(finetune)
    except ValueError as error:  # an unclosed quote, or a backslash at the end
        raise UserError(f"--finetune {finetune!r} cannot be split into options ({error})") from error
    if words:
        finetune_parameters(words)  # raises UserError for a wrong option
    with CommandProgress("checking the study"):
        study = define(sweep, baseline, seeds, stop_early, processes, pairs, pairs_limit, words)
        check_inputs(sweep.configs, pairs, pairs_limit, finetune_parameters([*study.finetune]) if words else {})
    if dry_run:
        print("\n".join(study.describe()))
        if slurm:
            from launchers.slurm import study_chain

            study_chain(study, settings).show()
        return
    if slurm:
        from launchers.slurm import submit_study

        return submit_study(study, sweep)
    study.save(sweep)
    run_to_report(study, None)


def finetune_parameters(options: list[str]) -> dict[str, Any]:
    """Parse options of `maskwright finetune`. Raise UserError for invalid ones, and for those that the study sets."""
    from launchers.commands.finetune import finetune
    from launchers.display import UsageError, explain_usage_error

    if own := {"--json", "--uri", "--out"} & {option.partition("=")[0] for option in options}:
        raise UserError(f"--finetune: {min(own)} is set by the study. Remove it from --finetune.")
    app = typer.Typer()
    app.command()(finetune)
    command: Any = typer.main.get_command(app)
    try:
        parameters: dict[str, Any] = command.make_context("finetune", ["MODEL", *options]).params
    except UsageError as error:
        raise UserError(f"--finetune: {explain_usage_error(error)}") from None
    return parameters
