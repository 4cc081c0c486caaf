"""`maskwright audit`: repeat steps of a run and compare the results."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import UserError
from data_prep.common.files import text_or_none
from data_prep.common.urls import require_trust
from data_prep.storage import require_run
from launchers.arguments import JsonFlag, ProcessCount, RunArgument, YesOption

if TYPE_CHECKING:
    from evaluation.audit import AuditPlan, AuditResult
    from pretrain.run import RunFolder

_LOG = "audit.log"  # only a folder with it is removed


def audit(
    run: RunArgument,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="first and last step; by default up to the newest checkpoint")
    ] = None,
    procs: ProcessCount = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="relative difference allowed where other bits are expected")
    ] = 1e-3,
    yes: YesOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Repeat steps of a run, and compare batches, losses, gradient norms and weights. Exit code 1 if they differ.

    The steps start from the checkpoint before them, in the folder RUN-audit, which is removed if all is equal. On the
    same kind of machine, with as many processes, every bit must be equal; on a GPU only with run.deterministic. The
    checkpoint is loaded as at a resume: audit only runs whose author you trust.

    Examples:

        maskwright audit runs/demo
        maskwright audit runs/demo --steps 40:80
    """
    require_run(run)
    from evaluation.audit import compare_results, plan_audit
    from pretrain.config_files import load_config
    from pretrain.run import RunFolder

    folder = RunFolder(run)
    config = load_config(folder.config)
    if not yes:
        require_trust(config.data_locations, folder.config)
    plan = plan_audit(folder, _range(steps, config.train.steps), config.run.resume)
    if steps and steps != f"{plan.start + 1}:{plan.end}":
        print(
            f"Repeating steps {plan.start + 1} to {plan.end}, from the checkpoint before {steps} to the one after it.",
            file=sys.stderr,
        )
    work = run.resolve().with_name(f"{run.resolve().name}-audit")
    _repeat(folder, plan, work, procs or (folder.read_environment() or {}).get("processes") or 1)
    result = compare_results(run, work, plan, config, tolerance)
    _print(run, work, plan, result, as_json)
    if result.difference:
        sys.exit(1)
    shutil.rmtree(work)


def _range(steps: str | None, last: int) -> tuple[int, int] | None:
    if steps is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", steps)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= last:
        raise UserError(f"--steps {steps}: write a first and a last step from 1 to {last}, for example 1:{last}")
    return int(match[1]), int(match[2])


def _repeat(folder: "RunFolder", plan: "AuditPlan", work: Path, processes: int) -> None:
    """Train the steps of the plan in `work`, which an earlier audit may have left."""
    from evaluation.audit import repeat_settings
    from evaluation.study import Stopped
    from launchers.display import CommandProgress
    from launchers.local import child_commands
    from pretrain.run import EXIT_CODES, JournalReader, RunFolder

    log, journal = work / _LOG, JournalReader(RunFolder(work).journal)
    if work.is_symlink() or work.exists():
        if work.is_symlink() or not log.is_file() or RunFolder(work).is_held():
            raise UserError(f"{work} is of an audit that still runs, or no audit made it; wait, or move it away")
        shutil.rmtree(work)
    words = ["train", str(folder.config), *repeat_settings(plan, work), "--procs", str(processes)]
    with child_commands() as maskwright, CommandProgress() as line:

        def poll() -> None:
            line.show(max(journal.last_step(), plan.start) - plan.start, plan.end - plan.start, "repeating steps")

        try:
            code = maskwright(words, log, poll)
        except Stopped:
            print("stopped; run the same command to start again", file=sys.stderr)
            sys.exit(EXIT_CODES["stopped"])
    if code not in (0, EXIT_CODES["stopped"]) or journal.last_step() < plan.end:
        lines = (text_or_none(log) or "").splitlines()
        error = next((line for line in lines if line.startswith("error: ")), f"its log is {log}")
        raise UserError(f"{folder.path} cannot be repeated: {error.removeprefix('error: ')}")


def _print(run: Path, work: Path, plan: "AuditPlan", result: "AuditResult", as_json: bool) -> None:
    if as_json:
        values = {"start": plan.start, "end": plan.end, "weights": plan.ends is not None, "allowed": result.allowed}
        print(json.dumps(values | {"difference": result.difference}))
    elif result.difference:
        print(f"{run}: {result.difference} (compared {result.how}; the repeated steps are in {work})")
    else:
        weights = f"and the weights of {plan.ends.name}" if plan.ends else "and no weights, as no checkpoint was kept"
        compared = f"batches, losses, gradient norms, {weights}"
        print(f"{run}: steps {plan.start + 1} to {plan.end} are equal {result.how}: {compared}")
