"""`maskwright study masking`: compare masking strategies on your data."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from data_prep.common.errors import UserError
from launchers.arguments import Overrides, PairsOption, ProcessCount
from launchers.commands.study_run import run_to_report
from launchers.display import CommandProgress


def study_masking(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML config of a run; run.dir is the study folder")],
    overrides: Overrides = None,
    strategies: Annotated[
        str, typer.Option(metavar="NAME,...", help="values of masking.strategy")
    ] = "token,whole_word,span",
    rates: Annotated[
        str,
        typer.Option(
            metavar="RATE,...", help="values of masking.rate; 0.3:0.15 decreases from the first to the last step"
        ),
    ] = "0.15,0.3,0.3:0.15",
    replacements: Annotated[
        str,
        typer.Option(
            metavar="M/R/K,...",
            help="percent of selected tokens that become [MASK], become a random token, or are kept",
        ),
    ] = "80/10/10",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="seeds per arm; you can raise it later")] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, help="steps of a run; by default train.steps of the config")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="arm to compare with, for example token-0.15; the first by default"),
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
    """Train every strategy at every rate and replacement, evaluate all models the same way, and report the differences.

    Run the same command to resume, also with more `--seeds`. The folder run.dir holds the runs, report.html, report.md
    and report.json.

    Exit code: 0 done, 75 stopped on request (Ctrl-C, SIGTERM), 1 if the study or a run failed.

    Examples:

        maskwright study masking configs/demo.yaml run.dir=runs/study --steps 60 --seeds 2 \\
            --strategies token,span --rates 0.15
        maskwright study masking configs/bert-mini.yaml --seeds 5 --pairs blimp.jsonl.zst
        maskwright study masking configs/bert-mini.yaml --finetune "--task classification --train a.tsv --valid b.tsv"
        maskwright study masking configs/bert-mini.yaml --strategies token,span --rates 0.15,0.4 run.dir=runs/study
        maskwright study masking configs/bert-mini.yaml --slurm cluster.partition=gpu
    """
    from evaluation.study import check_inputs, define
    from launchers.local import gpu_count
    from pretrain.resuming import load_to_start

    changes = [*(overrides or []), *([f"train.steps={steps}"] if steps else [])]
    settings, _ = load_to_start(config, changes, keep=True)
    processes = procs or (settings.cluster.gpus_per_node if slurm else max(1, gpu_count()))
    try:
        words = shlex.split(finetune)
    except ValueError as error:  # an unclosed quote, or a backslash at the end
        raise UserError(f"--finetune {finetune!r} cannot be split into options ({error})") from error
    finetuning = finetune_parameters(words) if words else {}
    varied = (strategies.split(","), rates.split(","), replacements.split(","))
    with CommandProgress("checking the study"):
        study = define(settings, *varied, baseline, seeds, processes, pairs, pairs_limit, words)
        check_inputs(settings, pairs, pairs_limit, finetuning)
    if dry_run:
        print("\n".join(study.describe()))
        if slurm:
            from launchers.slurm import study_chain

            study_chain(study, settings).show()
        return
    study.save(settings)
    if slurm:
        from launchers.slurm import submit_study

        submit_study(study, settings)
        return
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
