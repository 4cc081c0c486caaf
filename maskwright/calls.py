"""The functions of the package: each runs the command of its name."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from data_prep.common.errors import UserError as UserError
from maskwright.commands import PathLike, override_words, run_command_here, with_options
from maskwright.folders import DataSet, Run
from pretrain.config_files import load_config


@with_options("tokenizer train", "more")
def train_tokenizer(input: PathLike | Sequence[PathLike], out: PathLike, **options: Any) -> Path:
    """Train a tokenizer. Returns its folder, which `transformers.AutoTokenizer.from_pretrained` loads."""
    run_command_here("tokenizer train", input=input, out=out, **options)
    return Path(out)


@with_options("prep run", "more", "plan_only")
def prepare(
    input: PathLike | Sequence[PathLike],
    tokenizer: PathLike,
    out: PathLike,
    valid_fraction: float = 0.05,
    **options: Any,
) -> DataSet:
    """Tokenize text into a data set. After an interruption, the same call resumes.

    By default, 5% of the documents become the part `valid`. The command holds out none by default.
    """
    run_command_here("prep run", input=input, tokenizer=tokenizer, out=out, valid_fraction=valid_fraction, **options)
    return DataSet(out)


@with_options("mask show")
def show_masks(text: str, tokenizer: PathLike, overrides: Mapping[str, Any] | None = None, **options: Any) -> None:
    """Print how a text is masked in several epochs. `overrides`: such as `{"masking.strategy": "span"}`."""
    run_command_here("mask show", text=text, tokenizer=tokenizer, overrides=override_words(overrides), **options)


@with_options("train")
def train(config: PathLike, overrides: Mapping[str, Any] | None = None, **options: Any) -> Run:
    """Train on this machine. After a stop or a crash, the same call resumes. A complete run is not trained again.

    `overrides`: such as `{"train.steps": 200}`. Ctrl-C saves a checkpoint first; a second one ends the run immediately.
    """
    words = override_words(overrides)
    folder = load_config(Path(config), words).run.dir
    run_command_here("train", config=config, overrides=words, **options)
    return Run(folder)


@with_options("evaluate")
def evaluate(
    models: PathLike | Sequence[PathLike] = (),
    data: PathLike | None = None,
    out: PathLike | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate models on held-out text and minimal pairs, and compare them with the first one.

    Returns what the command writes with --json: the results by `models` and `comparisons`.
    """
    with TemporaryDirectory() as temporary:
        results = Path(out or Path(temporary, "results.json"))
        run_command_here("evaluate", captured=True, models=models, data=data, out=results, **options)
        return dict(json.loads(results.read_bytes()))


@with_options("fill", "as_json")
def fill(model: PathLike, text: str | Sequence[str], **options: Any) -> Any:
    """Fill each [MASK] of a text, or of several.

    Returns a pandas.DataFrame, the most likely token of each mask first: text, mask (its number in the text, from 0),
    token, id, and probability among all tokens that are not special.
    """
    import pandas

    filled = json.loads(run_command_here("fill", captured=True, model=model, text=text, as_json=True, **options))
    rows = [
        {"text": line["text"], "mask": number} | token
        for line in filled
        for number, tokens in enumerate(line["masks"])
        for token in tokens
    ]
    return pandas.DataFrame(rows)
