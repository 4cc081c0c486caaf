"""Figures for the model card, from the result files of `maskwright evaluate` and `maskwright finetune`."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from huggingface_hub import EvalResult

from data_prep.common.intervals import interval_of_seeds
from data_prep.common.reading import read_json, unusable
from data_prep.common.urls import file_name

_TASKS = {
    "classification": "text-classification",
    "regression": "text-classification",
    "tokens": "token-classification",
    "repair": "fill-mask",
}


def figures_in(path: Path, digest: str, names: Sequence[Path]) -> list[EvalResult]:
    """The figures of a model in a result file; none if the file has only figures of other models.

    Args:
        digest: of the model's files, which a fine-tuning holds; see model_digest.
        names: paths of the model, for an evaluation.

    Raises UserError if the file is missing or of another kind.
    """
    values = read_json(path, dict[str, Any], nan=True)
    try:
        if "models" in values:
            paths = {path.resolve() for path in names}
            of_model = [results for name, results in values["models"].items() if Path(name).resolve() in paths]
            return [figure for results in of_model for figure in _evaluation(results, values["settings"])]
        is_own = values["identity"]["model"] == digest and values["identity"].get("init") != "random"
        return [_finetuning(values)] if is_own else []
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        hint = "Name a file that `maskwright evaluate --json` or `maskwright finetune --json` wrote"
        missing = f" (it has no {error})" if isinstance(error, KeyError) else ""
        raise unusable(path, f"it is no result file{missing}", hint) from None


def _evaluation(results: dict[str, Any], settings: dict[str, Any]) -> Iterator[EvalResult]:
    if held_out := results.get("held_out"):
        masks = settings["held_out"]
        data = "/".join(PurePath(masks["data"]).parts[-2:])  # such as books/valid
        how = f"masks at {masks['rate']:g}, {held_out['rows']} rows of {masks['seq_len']} tokens"
        interval = _pair(held_out.get("loss_interval"))
        yield _figure("fill-mask", data, "loss", "held-out loss, nats", held_out["loss"], interval, how)
        yield _figure("fill-mask", data, "accuracy", "masked accuracy", held_out["masked_accuracy"], None, how)
    if pairs := results.get("pairs"):
        name, how = "accuracy on minimal pairs", f"{pairs['score']} score, {pairs['pairs']} pairs"
        data = file_name(str(settings["pairs"]["file"]))
        yield _figure("fill-mask", data, "accuracy", name, pairs["accuracy"], _pair(pairs["interval"]), how)


def _finetuning(values: dict[str, Any]) -> EvalResult:
    identity, scores = values["identity"], [float(score) for score in values["scores"]]
    how = f"mean of {len(scores)} seeds, {identity['epochs']} epochs, learning rate {identity['lr']:g}"
    data = f"{values['task']} task, examples {identity['valid'][:12]}"  # its file holds the digest of the examples
    metric, interval = str(values["metric"]), interval_of_seeds(scores)
    return _figure(_TASKS[values["task"]], data, metric, metric, values["mean"], interval, how)


def _figure(
    task: str, data: str, metric: str, name: str, value: Any, interval: tuple[float, float] | None, settings: str
) -> EvalResult:
    """A figure, with its settings and 95% interval in the arguments of the metric."""
    arguments = {"settings": settings} | ({"interval_95": list(interval)} if interval else {})
    return EvalResult(task, data, data, metric, float(value), metric_name=name, metric_args=arguments)


def _pair(interval: Any) -> tuple[float, float] | None:
    return (float(interval[0]), float(interval[1])) if interval else None
