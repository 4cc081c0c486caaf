"""Evaluate models: check the request, show progress, and write the results to a file and to MLflow."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from evaluation.likelihood import EvaluationRequest
from launchers.arguments import require_inputs
from launchers.display import CommandProgress, check_json_output, write_json_output
from pretrain.config_files import percent

_OPTIONS = {
    "pairs": {"form": "pll", "limit": "limit"},
    "data": {name: name for name in ("rows", "seq_len", "mask_rate", "strategy", "likelihood")},
}
"""Fields of a request that only pairs or data use, and their names as options."""


def run_evaluation(
    request: EvaluationRequest, out: Path | None = None, uri: str | None = None, experiment: str | None = None
) -> dict[str, Any]:
    """Return the results, as evaluation.likelihood.evaluate does.

    Args:
        out: JSON file for the results. A file next to it keeps the scores of sentences, so that a second call resumes.
        uri: MLflow address for the results, or none; MLFLOW_TRACKING_URI by default.
        experiment: MLflow experiment; by default the experiment of the models' run.

    Raises:
        UserError: a model, data set or file cannot be used, or an option has nothing to act on.
    """
    _check(request)
    if out:
        check_json_output(out)
    models = require_inputs(request.models, (request.data, request.counts), (request.pairs,))

    with CommandProgress("loading libraries"):
        from evaluation.likelihood import evaluate, send_evaluation
        from pretrain.tracking import Target

    tracked = uri or experiment or os.environ.get("MLFLOW_TRACKING_URI")
    target = Target.of_command(uri, experiment, models) if tracked else None
    kept = out.with_name(f"{out.name}.scores") if out and request.pairs else None
    with CommandProgress("loading the models") as line:
        results = evaluate(replace(request, models=tuple(map(str, models))), line.show, kept)
    if out:
        write_json_output(out, results)
    if kept:
        kept.unlink(missing_ok=True)  # another evaluation may write the same file
    if target:
        send_evaluation(results, target)
    return results


def _check(request: EvaluationRequest) -> None:
    """Raise UserError for a request that contradicts itself."""
    if not request.models and not request.baseline:
        raise UserError("No model to evaluate. Name a Hugging Face model folder or a run, or add --baseline unigram.")
    if request.baseline and "unigram" in request.models:
        raise UserError("unigram is also the name of the baseline. Name the model by its full path.")
    if request.data is None and request.pairs is None:
        raise UserError(
            "Nothing to evaluate on. Add --data (a held-out data set), --pairs (a file of minimal pairs), or both."
        )
    if request.baseline and request.counts is None:
        raise UserError("--baseline unigram needs token counts. Add --counts with the training data set.")
    if request.counts and request.data is None and not request.baseline:
        raise UserError("--counts is used only with --data or --baseline unigram. Add one of them, or remove --counts.")
    defaults = {field.name: field.default for field in fields(request)}
    for reader, options in _OPTIONS.items():
        for name, option in options.items():
            if getattr(request, reader) is None and getattr(request, name) != defaults[name]:
                raise UserError(f"{option} is used only with {reader}. Add {reader}, or remove {option}.")
    if request.likelihood and request.likelihood % 2:
        raise UserError(
            f"--likelihood must be an even number, not {request.likelihood}: two halves of the draws give the error."
        )
    if not 0 < request.mask_rate < 1:
        hint = percent(request.mask_rate) or "Write for example 0.15."
        raise UserError(f"--mask-rate must be more than 0 and less than 1, not {request.mask_rate:g}. {hint}")
