"""`maskwright study masking`: compare ways to mask on the user's own data."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from data_prep.errors import UserError
from launchers.commands.study_run import run_to_report


def study_masking(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="a run's YAML file; run.dir is the study's folder")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="train.steps=200 ...")] = None,
    strategies: Annotated[
        str, typer.Option(metavar="NAME,...", help="as for masking.strategy")
    ] = "token,whole_word,span",
    rates: Annotated[
        str,
        typer.Option(metavar="RATE,...", help="as for masking.rate; 0.3:0.15 falls from the first step to the last"),
    ] = "0.15,0.3,0.3:0.15",
    replacements: Annotated[
        str, typer.Option(metavar="M/R/K,...", help="percent that become [MASK], another token, and stay")
    ] = "80/10/10",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="of each arm; may be raised later")] = 3,
    budget: Annotated[
        Literal["tokens", "time", "both"], typer.Option(help="what is equal: steps, seconds, or both in runs apart")
    ] = "tokens",
    steps: Annotated[int | None, typer.Option(min=1, help="train.steps of the config by default")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="such as token-0.15; the first by default")
    ] = None,
    pairs: Annotated[str | None, typer.Option(metavar="FILE", help="minimal pairs, such as BLiMP's jsonl")] = None,
    pairs_limit: Annotated[int | None, typer.Option(min=1, help="pairs of each UID; all by default")] = None,
    finetune: Annotated[
        str,
        typer.Option(metavar="OPTIONS", help="of `maskwright finetune`: '--task classification --train F --valid F'"),
    ] = "",
    procs: Annotated[int | None, typer.Option(min=1, help="processes; by default one a GPU, or one")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show arms, tokens and time, and do nothing")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="submit a job array instead, as cluster: says")] = False,
) -> None:
    """Train every strategy at every rate and replacement, evaluate all models alike, and say what may be concluded.

    The same command again goes on where it was stopped, and more `--seeds` are added to what is there. All is in the
    folder run.dir: the runs, report.html, report.md, report.json.

    Exit code: 0 done, 75 stopped on request (Ctrl-C, SIGTERM), 1 failed, or some runs did.

    Examples:

        maskwright study masking configs/bert-mini.yaml --dry-run

        maskwright study masking configs/bert-mini.yaml --seeds 5 --budget both --pairs blimp.jsonl.zst

        maskwright study masking configs/bert-mini.yaml --finetune "--task classification --train a.tsv --valid b.tsv"

        maskwright study masking configs/bert-mini.yaml --strategies token,span --rates 0.15,0.4 run.dir=runs/study

        maskwright study masking configs/bert-mini.yaml --slurm cluster.partition=gpu
    """
    from evaluation.study.define_study import check_inputs, define
    from evaluation.study.study_file import continued, keep_study
    from evaluation.study.study_preview import describe
    from launchers.local import gpu_count
    from pretrain.config import load_config

    changes = [*(overrides or []), *([f"train.steps={steps}"] if steps else [])]
    settings = load_config(config, changes)
    processes = procs or (settings.cluster.gpus_per_node if slurm else max(1, gpu_count()))
    words = _words(finetune)
    finetuning = finetune_parameters(words) if words else {}
    varied = (strategies.split(","), rates.split(","), replacements.split(","))
    folder = settings.run.dir
    study = define(settings, *varied, baseline, seeds, budget, processes, pairs, pairs_limit, words)
    study = continued(folder, study)
    check_inputs(settings, pairs, pairs_limit, finetuning)
    if dry_run:
        print("\n".join(describe(folder, study, settings)))
        return
    keep_study(folder, study, settings)
    if slurm:
        from launchers.slurm.study_array import submit_study

        print(submit_study(folder, study, settings))
        return
    run_to_report(folder, study, None)


def _words(finetune: str) -> list[str]:
    try:
        return shlex.split(finetune)
    except ValueError as error:  # a quote that does not close, a backslash at the end
        raise UserError(f"--finetune {finetune!r} cannot be split into options ({error})") from error


def finetune_parameters(options: list[str]) -> dict[str, Any]:
    """The parameters of `maskwright finetune` by name; refuses what it would refuse, and what the study sets itself."""
    from launchers.commands.finetune import finetune
    from launchers.display.usage_errors import UsageError, explain

    if own := {"--json", "--uri", "--out"} & {option.partition("=")[0] for option in options}:
        raise UserError(f"--finetune: {min(own)} is set by the study; leave it out")
    app = typer.Typer()
    app.command()(finetune)
    command: Any = typer.main.get_command(app)
    try:
        found: dict[str, Any] = command.make_context("finetune", ["MODEL", *options]).params
    except UsageError as error:
        raise UserError(f"--finetune: {explain(error)}") from None
    return found
