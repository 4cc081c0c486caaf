"""`maskwright mask show`: show how a text is masked in several epochs."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from data_prep.common.errors import UserError, printable
from launchers.arguments import Overrides

if TYPE_CHECKING:
    import numpy as np

    from data_prep.tokenizer import Spelling
    from pretrain.config import Config
    from pretrain.data import MaskedVisit
    from pretrain.masking import Vocabulary

_REPLACEMENTS = {"mask": "[MASK]", "random": "random", "kept": "kept"}


def mask_show(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="text in quotes", show_default=False)],
    tokenizer: Annotated[str, typer.Option(help="folder, tokenizer.json or hub:OWNER/NAME")],
    overrides: Overrides = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with masking:, run.seed, data.seq_len ...")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="number of steps, each in a new epoch")] = 4,
) -> None:
    """Show how a text is masked in several epochs, with the masks that training draws.

    The settings have the same names as in `maskwright train`. Of a long text, the first row of data.seq_len tokens is
    shown. For the text of a run, use `maskwright replay`.

    Examples:

        maskwright mask show "The old ship left the harbour." --tokenizer data/demo-tokenizer
        maskwright mask show "The old ship left the harbour." --tokenizer data/demo-tokenizer masking.strategy=span
        maskwright mask show "$(cat a.txt)" --tokenizer hub:google-bert/bert-base-uncased masking.rate=0.3
    """
    from pretrain.config_files import load_config

    # Required config keys that do not affect the masks.
    parsed = load_config(config, [*(overrides or []), "run.dir=.", "train.steps=1", "data.train=."])
    if not parsed.objective_kind.draws_masks:
        raise UserError("the config's objective is not masked language modelling, which alone has masks to show")
    from pretrain.data import masked_visits

    ids, word_starts, vocabulary, spelling = encode(text, tokenizer)
    visits = list(masked_visits(parsed, vocabulary, ids, word_starts, steps))
    if (length := len(visits[0].document.original) - 2) < len(ids):  # without [CLS] and [SEP]
        typer.echo(f"note: the first {length} of {len(ids)} tokens are shown. Raise data.seq_len for more.", err=True)
    _print(parsed, pieces(spelling, ids[:length], word_starts), visits, vocabulary, spelling)


def pieces(spelling: "Spelling", ids: "np.ndarray", word_starts: "np.ndarray") -> str:
    """The text of token ids [T] with a dot where a word is split: "the em·bed·ding"."""
    texts = [spelling.text([id]) for id in ids.tolist()]
    joined = "".join(text if new else f"·{text}" for text, new in zip(texts, word_starts.tolist(), strict=False))
    return printable(joined.strip(), keep="\n\t")


def encode(text: str, tokenizer: str) -> "tuple[np.ndarray, np.ndarray, Vocabulary, Spelling]":
    """Token ids [T] as `maskwright prep` writes them, word starts [T], and what describes the tokenizer.

    Raises UserError for a text without tokens, and a tokenizer that cannot be loaded or lacks a token that masking
    needs.
    """
    from data_prep.tokenizer import Encoders, Spelling, describe_tokenizer, fetch, load
    from pretrain.masking import Vocabulary

    if not text.strip():
        raise UserError("the text is empty; there is nothing to mask")
    with TemporaryDirectory() as temporary:
        folder = fetch(tokenizer, Path(temporary) / Path(tokenizer).stem)
        info, spelling = describe_tokenizer(folder), Spelling.open(folder)
        encoder, _ = Encoders(load(folder), info).choose([text])
        ids, _, word_starts = encoder([text])
        if word_starts is None:
            word_starts = info.begins_word((folder / "tokenizer.json").read_bytes())[ids]
    if not len(ids):
        raise UserError(f"the text has no tokens: {tokenizer} removes all of it")
    return ids, word_starts, Vocabulary.of(info), spelling


def _print(
    config: "Config", split: str, visits: "list[MaskedVisit]", vocabulary: "Vocabulary", spelling: "Spelling"
) -> None:
    from launchers.display import LEGENDS, coloured, listed, marked

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(Text(_settings(config), style="bold"))
    console.print(f"split into tokens, · inside words: {split}")
    units = [(", ", None), ("⟦two words⟧", "mask"), (" were selected as one", None)]
    console.print(coloured([*LEGENDS["bidirectional"], *units]))
    outside = frozenset({vocabulary.cls, vocabulary.sep})
    for step, visit in enumerate(visits, 1):
        rate = "" if isinstance(config.masking.rate, float) else f", rate {visit.rate:.3g}"
        console.print(Text(f"\nstep {step}, epoch {visit.epoch}{rate}", style="bold"), end="")
        console.print(f": {_counts(visit)}")
        console.print(listed(marked(visit.document, spelling, outside, visit.units)))


def _settings(config: "Config") -> str:
    """Describe the settings that determine the masks."""
    from pretrain.config_files import on_one_line

    values = config.masking.model_dump(mode="json")
    names = ["strategy", "rate", *(["span"] if "span" in config.masking.weights else [])]
    settings = ", ".join(f"{name} {on_one_line(values[name])}" for name in names)
    return f"{settings}, seed {config.run.seed}, rows of {config.data.seq_len} slots"


def _counts(visit: "MaskedVisit") -> str:
    predictions = visit.document.predictions
    kinds = Counter[str](prediction.kind for prediction in predictions)
    units = len({visit.units[prediction.place] for prediction in predictions})
    selected = f"{len(predictions)} of {_plural(visit.ordinary, 'ordinary token')}"
    share = f"{len(predictions) / max(visit.ordinary, 1):.1%}"
    drawn = ", ".join(f"{kinds[kind]} {name}" for kind, name in _REPLACEMENTS.items())
    return f"{selected} ({share}) in {_plural(units, 'unit')}: {drawn}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
