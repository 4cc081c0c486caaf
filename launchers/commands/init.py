"""`maskwright init`: a config, a tokenizer and a data set for a text and this machine."""

import json
import math
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data_prep.common.errors import UserError
from launchers.arguments import TextField

if TYPE_CHECKING:
    from rich.console import Console

    from data_prep.inspection import TextSurvey
    from pretrain.planning import FirstConfig, Machine

_SEPARATORS = ("blank", "line", "file")
_FEWEST_DOCUMENTS = 20
_CASED = 0.1  # share of cased letters from which lower case is a question
_ALPHABETS = 4  # for WordPiece: a character has two tokens, and half of the vocabulary is for longer ones
_Kind = tuple[str, bool | None, bool | None]
"""The model of a tokenizer, and whether it lower-cases text and strips accents (None for BPE)."""


def _minutes(text: str | float) -> float:
    """Parse minutes, or hours as in 2h. Raises UserError for other texts, and less than 0.1."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+) *(|m|min|minutes?|h|hours?)", str(text).strip().lower())
    minutes = float(match[1]) * (60 if match[2].startswith("h") else 1) if match else 0
    if not 0.1 <= minutes < math.inf:
        raise typer.BadParameter(f"{text!r} is no time of 0.1 minutes or more. Write for example 30, or 2h.")
    return minutes


def init(
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="files, folders, quoted globs or URLs of text")],
    name: Annotated[str | None, typer.Option(help="name of the model; my-model by default")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(parser=_minutes, metavar="N", help="time for training, or 2h; by default 2, or 30 with a GPU"),
    ] = None,
    lowercase: Annotated[bool | None, typer.Option(help="lower-case the text, as by default if it has case")] = None,
    strip_accents: Annotated[bool, typer.Option("--strip-accents", help="remove accents and vowel signs")] = False,
    separator: Annotated[
        str | None, typer.Option(metavar="blank|line|file", help="end of a document in .txt; blank lines by default")
    ] = None,
    prep: Annotated[bool | None, typer.Option(help="also make the tokenizer and the data set, as by default")] = None,
    text_field: TextField = "text",
    yes: Annotated[bool, typer.Option("--yes", help="ask nothing, and take the defaults")] = False,
) -> None:
    """Write a config that suits your text and this machine, and prepare the data.

    It asks at most five questions, each also an option. Without a terminal it takes the defaults. After an
    interruption, run the same command to resume. The time of training is an estimate.

    Examples:

        maskwright init configs/demo/books.jsonl.zst --yes
        maskwright init 'text/*.txt'
        maskwright init text/books.jsonl --name books --minutes 30 --yes
    """
    from data_prep.inspection import survey
    from data_prep.sources import Options, find_inputs
    from data_prep.storage import Cache
    from launchers.display import text_console
    from pretrain.planning import choose_first_config

    console = text_console()
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not yes
    inputs = find_inputs(text)
    name = _answer(asks, name, "Name of the model", "my-model")
    config = _config_file(name)
    if separator is None:
        is_txt = any(one.kind == "txt" for one in inputs)
        separator = _answer(asks and is_txt, None, "A .txt document ends at: blank (a blank line), line, file", "blank")
    if separator not in _SEPARATORS:
        raise UserError(f"--separator is {separator!r}. Write {', '.join(_SEPARATORS[:-1])} or {_SEPARATORS[-1]}.")
    reading = Options(text_field, separator=separator)
    known, machine = survey(inputs, reading, Cache(None, 50 * 10**9)), examine()
    console.print(*_notes(known, machine), sep="\n", markup=False)
    minutes = _answer(asks, minutes, "How many minutes may training take?", 30.0 if machine.gpus else 2.0)
    cased = known.cased > _CASED
    lowercase = _answer(asks and cased, lowercase, "Lower-case the text? (no, if names or nouns matter)", cased)
    prep = _answer(asks, prep, "Make the tokenizer and the data set now?", True)
    if prep and known.documents < _FEWEST_DOCUMENTS:
        raise UserError(
            f"The text has {known.documents} documents, and some are held out to measure the model. Give "
            f"{_FEWEST_DOCUMENTS} or more. For .txt files, --separator line makes a document of each line."
        )

    first = choose_first_config(name, known.tokens, known.words, known.documents, machine, minutes)
    given = {"--separator": (separator, "blank"), "--text-field": (text_field, "text")}
    form = [word for option, (value, default) in given.items() if value != default for word in (option, value)]
    kind: _Kind = ("BPE", None, None)
    if known.has_spaces and _ALPHABETS * known.alphabet <= first.vocab_size:
        kind = ("WordPiece", lowercase, strip_accents)
    elif strip_accents:
        raise UserError("--strip-accents needs WordPiece, but byte-level BPE suits this text. Leave it out.")
    commands = _preparation(text, name, first, form, kind)
    typed = [f"maskwright {shlex.join(map(str, words))}" for words in commands]
    following = [f"maskwright train {config}", f"maskwright fill runs/{name} 'Text with a [MASK] in it.'"]
    notes = [f"{name}, written by maskwright init.", "", *_notes(known, machine), *_estimate(first, minutes), ""]
    content = first.text([*notes, *(f"  {line}" for line in (*typed, *following)), ""])
    if prep:
        _prepare(console, commands, kind)
    config.write_text(content, encoding="utf-8")
    console.print(*_estimate(first, minutes), f"Config: {config}", sep="\n", markup=False)
    console.print("Next:", *(following if prep else [*typed, *following]), sep="\n  ", soft_wrap=True, markup=False)


def examine() -> "Machine":
    """This machine. The speed of a CPU is measured with matrix products."""
    import psutil

    from launchers.doctor import list_gpus
    from launchers.local import gpu_count
    from pretrain.distributed import Cores
    from pretrain.planning import Machine, gpu_tflops

    gpus: tuple[str, ...] = ()
    bf16 = True
    if number := gpu_count():
        listed = list_gpus()
        known = listed if isinstance(listed, list) else []
        gpus = tuple(([gpu.name for gpu in known] + ["GPU"] * number)[:number])
        bf16 = all(gpu.has_bf16 for gpu in known)
    speed = gpu_tflops(gpus) if gpus else _matrix_tflops()
    return Machine(Cores.usable().number, psutil.virtual_memory().total, gpus, speed, bf16)


def _matrix_tflops() -> float:
    """The speed of products of fp32 matrices during a second, in 10**12 operations a second."""
    import numpy as np

    matrix, products, start = np.ones((768, 768), np.float32), 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < 1:
        matrix @ matrix
        products += 1
    return products * 2 * 768**3 / seconds / 1e12


def _answer(asks: bool, given: Any, question: str, default: Any) -> Any:
    """The value of an option; if it is not given, the user's answer, or else the default."""
    if given is not None or not asks:
        return default if given is None else given
    if isinstance(default, bool):
        return typer.confirm(question, default)
    return typer.prompt(question, default, value_proc=_minutes if isinstance(default, float) else None)


def _config_file(name: str) -> Path:
    if not re.fullmatch(r"[^\W_][\w.+-]*", name) or name.endswith((".yaml", ".yml")):
        meant = re.sub(r"\.ya?ml$", "", re.sub(r"[^\w.+-]+", "-", name)).strip("-._") or "books"
        raise UserError(f"--name is {name!r}, but it must be a name for folders, without spaces. Write {meant}.")
    config = Path(f"{name}.yaml")
    if config.exists():
        raise UserError(f"{config} exists. Train with `maskwright train {config}`, or choose another --name.")
    return config


def _preparation(text: list[str], name: str, first: "FirstConfig", form: list[str], kind: _Kind) -> list[list[object]]:
    """The commands that make the tokenizer and the data set; the last word of each is its output."""
    model, lowercase, strip_accents = kind
    options = ["--kind", "bpe"] * (model == "BPE") + ["--no-lowercase"] * (lowercase is False)
    options += ["--strip-accents"] * bool(strip_accents)
    inputs, tokenizer = [word for one in text for word in ("--input", one)], f"data/{name}-tokenizer"
    size = ("--vocab-size", first.vocab_size, "--sample-mb", 100)
    share = ("--tokenizer", tokenizer, "--valid-fraction", f"{first.valid_fraction:.2g}")
    return [
        ["tokenizer", "train", *inputs, *form, *options, *size, "--out", tokenizer],
        ["prep", "run", *inputs, *form, *share, "--out", f"data/{name}"],
    ]


def _prepare(console: "Console", commands: list[list[object]], kind: _Kind) -> None:
    from launchers.local import run_command

    train, run = commands
    tokenizer = Path(str(train[-1]))
    if tokenizer.exists():
        _check_existing(tokenizer, kind)
    else:
        run_command(console, *train)
    run_command(console, *run)


def _check_existing(tokenizer: Path, kind: _Kind) -> None:
    """Raise UserError if the tokenizer of an interrupted init is of another kind."""
    from data_prep.tokenizer import load, plain

    settings = json.loads(load(tokenizer).to_str())
    bert = plain(settings)["normalizer"] or {}
    if (settings["model"]["type"], bert.get("lowercase"), bert.get("strip_accents")) != kind:
        raise UserError(
            f"{tokenizer} was made with other settings. Remove it, choose another --name, or repeat the first answers."
        )


def _notes(known: "TextSurvey", machine: "Machine") -> list[str]:
    """The text and the machine, in a few lines."""
    files = ", ".join(f"{count:,} {kind}" for kind, count in known.inputs.items())
    about = "about " if known.scale > 1 else ""
    words = f"{about}{known.words:,} words" if known.has_spaces else f"{about}{known.tokens:,} tokens, without spaces"
    gpus = ", ".join(machine.gpus) or "no GPU"
    cores = f"{machine.cores} CPU core{'s' if machine.cores > 1 else ''}"
    return [
        f"Text: {files} ({known.stored_bytes / 1e6:,.1f} MB), {about}{known.bytes / 1e6:,.1f} MB of text, {words}.",
        f"Documents of {known.words / known.documents:,.0f} words on average; {known.distinct:.1%} of the words are "
        f"distinct; {known.cased:.0%} of the letters have two cases.",
        f"Machine: {cores}, {machine.memory / 1e9:,.0f} GB of memory, {gpus}.",
    ]


def _estimate(first: "FirstConfig", minutes: float) -> list[str]:
    size, longer = first.size, " (the shortest useful run)" if first.minutes > minutes else ""
    return [
        f"Model: {size.layers} layers x {size.hidden}, {first.parameters:,} parameters, {first.vocab_size:,} tokens.",
        f"Training: {first.values['train']['steps']:,} steps, {first.epochs:.2g} times the text, "
        f"{first.minutes:.1f} minutes{longer}. The time is an estimate.",
        *filter(None, [first.batch_note]),
    ]
