"""Evaluate models and fill masks from Python."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from evaluation.likelihood import EvaluationRequest
from launchers.actions import PathLike, as_paths, checked, likely_tokens, run_evaluation


@checked
def evaluate(
    models: PathLike | Sequence[PathLike] = (),
    data: PathLike | None = None,
    *,
    pairs: PathLike | None = None,
    pll: Literal["original", "within-word"] = "original",
    limit: Annotated[int, Field(ge=1)] | None = None,
    rows: Annotated[int, Field(ge=1)] = 1000,
    seq_len: Annotated[int, Field(ge=8)] | None = None,
    mask_rate: float = 0.15,
    strategy: Literal["token", "whole_word", "span", "ngram"] = "token",
    likelihood: Annotated[int, Field(ge=2)] | None = None,
    counts: PathLike | None = None,
    baseline: Literal["unigram"] | None = None,
    out: PathLike | None = None,
    uri: str | None = None,
    experiment: str | None = None,
) -> dict[str, Any]:
    """Evaluate models on held-out text and minimal pairs, and compare them with the first one.

    Args:
        models: Hugging Face model folders, hub:OWNER/NAME[@REVISION], or runs (newest checkpoint).
        data: held-out data set, such as `DataSet.valid`.
        pairs: file of minimal pairs, for example BLiMP as jsonl.
        pll: tokens to mask when a token of a sentence is scored.
        limit: pairs per UID; all by default.
        rows: rows of held-out text.
        seq_len: tokens per row; by default 128, or the models' limit if it is lower.
        mask_rate: share of tokens to predict.
        strategy: masking unit of held-out text.
        likelihood: also give the likelihood of all tokens, of masked models from this even number of masks a row.
        counts: data set for token counts, for example the training text.
        baseline: "unigram" also evaluates a model that uses only the token counts.
        out: JSON file for the results. A file next to it keeps the scores of sentences, so that a second call resumes.
        uri: MLflow address for the results; the environment variable MLFLOW_TRACKING_URI by default.
        experiment: MLflow experiment; by default the experiment of the models' run.

    Returns:
        The results, by `models` (name of the model) and `comparisons`; docs/evaluation.md describes them.

    Raises:
        UserError: a model, data set or file cannot be used, or an option has nothing to act on. Options are named as on
            the command line: `--mask-rate` is `mask_rate`.
    """
    names = tuple(str(Path(model)) for model in as_paths(models))
    data, pairs, counts = (None if value is None else os.fspath(value) for value in (data, pairs, counts))
    held_out = rows, seq_len, mask_rate, strategy, likelihood
    request = EvaluationRequest(names, bool(baseline), data, counts, *held_out, pairs, pll, limit)
    return run_evaluation(request, None if out is None else Path(out), uri, experiment)


@checked
def fill(model: PathLike, texts: str | Sequence[str], top: Annotated[int, Field(ge=1)] = 5) -> Any:
    """The most likely tokens for each [MASK] of a text or of several.

    Args:
        model: Hugging Face model folder, hub:OWNER/NAME[@REVISION], or run (newest checkpoint).
        texts: with [MASK] where a word is missing.
        top: number of tokens for each mask.

    Returns:
        A pandas.DataFrame, most likely first: text, mask (its number in the text, from 0), token, id, and probability
        among all tokens that are not special.

    Raises:
        UserError: the model cannot be used, or a text has no mask.
    """
    import pandas

    lines = [texts] if isinstance(texts, str) else texts
    rows = [
        (line, number, *token)
        for line, masks in zip(lines, likely_tokens(os.fspath(model), lines, top), strict=True)
        for number, tokens in enumerate(masks)
        for token in tokens
    ]
    return pandas.DataFrame(rows, columns=["text", "mask", "token", "id", "probability"])
