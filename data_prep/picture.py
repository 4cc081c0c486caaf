"""What is in a data set as a picture: the facts of `data_prep.inspect.summary`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.figures import new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _BLUE, _ORANGE, _GREY = "#222222", "#1f6fb4", "#d9660d", "#777777"
_LONGEST_NAME = 28


def draw(facts: dict[str, Any], path: Path, title: str) -> None:
    """Write a PNG: document lengths, token frequencies, fill by row length, and, if any, sources and rows left out."""
    panels = [_lengths, _frequencies, _fill]
    panels += [_sources] * bool(facts["sources"]) + [_left_out] * bool(any(facts["left_out"].values()))
    columns = 2 if len(panels) == 4 else 3
    rows = -(-len(panels) // columns)
    figure = new_figure(5.2 * columns, 3.8 * rows)
    counts = f"{facts['documents']:,} documents, {facts['tokens']:,} tokens"
    figure.suptitle(f"{title}: {counts}".replace("$", r"\$"), x=0.01, ha="left", color=_INK, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, ax in zip(panels, axes, strict=False):
        panel(ax, facts)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    save_png(figure, path)


def _lengths(ax: "Axes", facts: dict[str, Any]) -> None:
    bins = facts["length_histogram"]
    edges = [bins[0]["from"], *(bin["to"] + 1 for bin in bins)]
    for name, colour, fill in (("documents", _BLUE, True), ("tokens", _ORANGE, False)):
        shares = [100 * bin[name] / facts[name] for bin in bins]
        ax.stairs(shares, edges, color=colour, fill=fill, alpha=0.75 if fill else 1, linewidth=2, label=f"% of {name}")
    ax.set_xscale("log", base=2)
    ax.set(title="Document lengths", xlabel="tokens in the document", ylabel="%")
    ax.legend(frameon=False)


def _frequencies(ax: "Axes", facts: dict[str, Any]) -> None:
    points = facts["rank_frequency"]
    ax.loglog([point["rank"] for point in points], [point["count"] for point in points], ".-", color=_BLUE)
    used, size = facts["vocabulary_used"], facts["tokenizer"]["vocab_size"]
    ax.set(
        title=f"Token frequencies ({used:,} of {size:,} ids occur)", xlabel="rank of the token", ylabel="occurrences"
    )


def _fill(ax: "Axes", facts: dict[str, Any]) -> None:
    names = [name for name in ("alone", "packed") if all(name in row for row in facts["fill"])]
    width = 0.8 / len(names)
    for number, (name, colour) in enumerate(zip(names, (_GREY, _BLUE), strict=False)):
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(facts["fill"]))]
        label = {"alone": "a document a row", "packed": "packed as for training"}[name]
        bars = ax.bar(places, [100 * row[name] for row in facts["fill"]], width, color=colour, label=label)
        ax.bar_label(bars, fmt="%.0f", fontsize=8)
    ax.set_xticks(range(len(facts["fill"])), [f"{row['seq_len']:,}" for row in facts["fill"]])
    ax.set(title="Slots that are not padding", xlabel="seq_len", ylabel="%", ylim=(0, 125))
    ax.legend(frameon=False, loc="upper right", ncols=2, fontsize=8)


def _sources(ax: "Axes", facts: dict[str, Any]) -> None:
    sources = sorted(facts["sources"], key=lambda source: -source["tokens"])
    _bars(ax, {source["name"] or "(no name)": source["tokens"] for source in sources})
    ax.set(title="Tokens by source", xlabel="tokens")


def _left_out(ax: "Axes", facts: dict[str, Any]) -> None:
    reasons = sorted(facts["left_out"].items(), key=lambda item: -item[1])
    _bars(ax, {reason: count for reason, count in reasons if count})
    ax.set(title="Rows left out, by reason", xlabel="rows")


def _bars(ax: "Axes", counts: dict[str, int]) -> None:
    """Horizontal bars, the first one on top; at most 12, the others together."""
    shown = dict(list(counts.items())[:12])
    if others := list(counts.values())[12:]:
        shown[f"{len(others)} others"] = sum(others)
    names = [name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..." for name in shown]
    bars = ax.barh(range(len(shown)), list(shown.values()), color=_BLUE)
    ax.bar_label(bars, [f"{count:,}" for count in shown.values()], fontsize=8, padding=2)
    ax.set_xticks([])  # each bar has its number
    ax.set_yticks(range(len(shown)), [name.replace("$", r"\$") for name in names])
    ax.invert_yaxis()
    ax.margins(x=0.25)
