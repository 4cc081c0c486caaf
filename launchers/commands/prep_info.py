"""`maskwright prep info`: counts, lengths, fill and frequent tokens of a data set."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from data_prep.common.errors import one_line, without_controls
from launchers.arguments import DataSet, JsonFlag
from launchers.display import CommandProgress, facts_table, text_console, text_table

_SAMPLE = 60  # characters of a document that was left out
_BAR = 30  # characters of the longest bar


def prep_info(
    location: DataSet,
    as_json: JsonFlag = False,
    seq_len: Annotated[
        list[int] | None,
        typer.Option(
            min=3, metavar="N", help="row length to report the fill for; may be repeated  [default: 128 512 1024 8192]"
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="number of most frequent tokens to list")] = 20,
) -> None:
    """Show statistics of a data set: counts by source, document lengths, fill of rows, most frequent tokens.

    Reads every token. Entropy is in nats per token. Fill is the share of slots that are not padding; [CLS] and [SEP]
    count as filled.

    Example:

        maskwright prep info data/demo/train --seq-len 128 --seq-len 512
    """
    from data_prep.format import Dataset
    from data_prep.inspection import summary
    from pretrain.data import Filling

    dataset = Dataset(location)
    with CommandProgress() as line:
        facts = summary(dataset, seq_len, top, line.rate("tokens"))
    for row in facts["fill"]:
        row["packed"] = Filling.of(dataset, row["seq_len"]).fill
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    out = text_console()
    out.print(Text(without_controls(str(dataset.location)), style="bold"))
    for table in (_totals(facts), _samples(facts), _sources(facts), _lengths(facts), _fill(facts), _tokens(facts)):
        if table is not None:
            out.print(table)


def _totals(facts: dict[str, Any]) -> Table:
    tokenizer, left_out = facts["tokenizer"], facts["left_out"]
    targets = facts.get("targets")
    return facts_table(
        {
            "documents": _count(facts["documents"]),
            "tokens": _count(facts["tokens"]),
            "UTF-8 bytes of the text": _count(facts["text_bytes"], "not counted"),
            "words by the tokenizer": _count(facts["words"]),
            "tokens a word": _number(facts["tokens_per_word"]),
            "UTF-8 bytes a token": _number(facts["bytes_per_token"]),
            "unknown tokens": f"{_count(facts['unknown'])} ({_percent(facts['unknown_rate'])})",
            "unigram entropy": f"{_number(facts['unigram_entropy'])} nats a token",
            "vocabulary": f"{facts['vocabulary_used']:,} of {tokenizer['vocab_size']:,} ids occur",
            "size": f"{facts['bytes']:,} bytes, {facts['blocks']:,} blocks, {facts['shards']:,} shards, "
            f"{facts['dtype']}",
            "targets": "" if targets is None else f"{targets:,} tokens to repair ({targets / facts['tokens']:.2%})",
            "inputs": _count(facts["inputs"]),
            "left out": ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count) or "nothing",
            "fingerprint": facts["fingerprint"],
            "tokenizer": tokenizer["sha256"],
        }
    )


def _samples(facts: dict[str, Any]) -> Table | None:
    samples = facts["left_out_samples"]
    rows = [(reason, one_line(text, _SAMPLE)) for reason, texts in samples.items() for text in texts]
    return text_table(("reason", "text"), rows, "Samples of documents left out", texts=("text",)) if rows else None


def _sources(facts: dict[str, Any]) -> Table | None:
    if not facts["sources"]:
        return None
    columns = ("inputs", "documents", "tokens", "tokens/word", "bytes/token", "unknown", "entropy", "left out")
    rows = [
        (
            "(of no input)" if source["name"] is None else source["name"] or "(no name)",
            _percent(source["tokens"] / facts["tokens"]),
            *(_count(source[key]) for key in ("inputs", "documents", "tokens")),
            *(_number(source[key]) for key in ("tokens_per_word", "bytes_per_token")),
            _percent(source["unknown_rate"]),
            _number(source["unigram_entropy"]),
            _count(sum(source["left_out"].values())),
        )
        for source in facts["sources"]
    ]
    return text_table(("source", "share", *columns), rows, "By source")


def _lengths(facts: dict[str, Any]) -> Table:
    lengths = ", ".join(f"{name} {value:,.0f}" for name, value in facts["document_length"].items())
    largest = max(bin["documents"] for bin in facts["length_histogram"])
    rows = [
        (
            f"{bin['from']:,} to {bin['to']:,}",
            _count(bin["documents"]),
            f"{100 * bin['documents'] / facts['documents']:.1f}",
            f"{100 * bin['tokens'] / facts['tokens']:.1f}",
            "#" * -(-bin["documents"] * _BAR // largest),
        )
        for bin in facts["length_histogram"]
    ]
    columns = ("tokens", "documents", "%", "% of tokens", "histogram")
    return text_table(columns, rows, f"Document lengths: {lengths}", texts=("histogram",))


def _fill(facts: dict[str, Any]) -> Table:
    columns = ("seq_len", "packed as for training", "documents cut")
    rows = [(_count(row["seq_len"]), _percent(row["packed"]), _count(row["documents_cut"])) for row in facts["fill"]]
    return text_table(columns, rows, "Fill: share of slots that are not padding")


def _tokens(facts: dict[str, Any]) -> Table | None:
    if not facts["most_frequent"]:
        return None
    rows = [
        (_spelled(token), str(token["id"]), _count(token["count"]), _percent(token["share"]))
        for token in facts["most_frequent"]
    ]
    return text_table(("token", "id", "count", "share"), rows, "Most frequent tokens")


def _spelled(token: dict[str, Any]) -> str:
    text = "" if token["text"] is None else repr(token["text"])
    return str(token["token"]) if "\N{REPLACEMENT CHARACTER}" in text else text  # part of a character


def _count(value: int | None, missing: str = "not recorded") -> str:
    return missing if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:,.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
