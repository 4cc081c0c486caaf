"""The model card of an export: how the model was trained, and how to use it; and of a published model, with figures."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from data_prep.common.errors import UserError
from pretrain.checkpoint import Checkpoint, step_of
from pretrain.config import OBJECTIVES, Config, ObjectiveKind, View
from pretrain.export.card_sections import markdown_table
from pretrain.export.transformers_folder import needs_version_5

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PLACE = "PATH_OF_THIS_FOLDER"
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)

_FILL_MASK = """```python
from transformers import pipeline

fill = pipeline("fill-mask", model="PATH_OF_THIS_FOLDER")
print(fill(f"The ship sailed across the {fill.tokenizer.mask_token}."))
```
"""
_GENERATE = """A text begins with [CLS]. No special token was predicted, so a generated text ends only where
`max_new_tokens` says.

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_OF_THIS_FOLDER")
model = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_FOLDER")
ids = tokenizer("The ship sailed", add_special_tokens=False)["input_ids"]
found = model.generate(torch.tensor([[tokenizer.cls_token_id, *ids]]), max_new_tokens=10)
print(tokenizer.decode(found[0], skip_special_tokens=True))
```

"""
_BOTH_SIDES = """
As an encoder whose tokens see both sides, to fine-tune:
`AutoModel.from_pretrained("PATH_OF_THIS_FOLDER", is_decoder=False)`.
"""
_VERSION_5 = """
Needs transformers 5. Version 4 lacks this kind of model, or its rotary bases or attention layers.
"""
_PREDICT_NEXT = """A masked token is predicted by the logits of the position before it, so that pipelines of
transformers for masked models do not fit. The states serve as features, and for fine-tuning.
"""
_PREFIX = """To translate: `maskwright generate PATH_OF_THIS_FOLDER --prompt "A SOURCE TEXT"`.

In training, source tokens saw each other, and target tokens the source and what precedes them. No class of transformers
has this attention. The folder holds the bidirectional class, which reads a source text as in training. Its states serve
as features, and for fine-tuning.
"""
_USES = {"fill-mask": _FILL_MASK, "text-generation": _GENERATE, "feature-extraction": _PREDICT_NEXT}


def model_card(
    name: str, saved: Checkpoint, averaged: bool, model: "PreTrainedModel", longest: int | None, kind: ObjectiveKind
) -> str:
    """The model card of an export, as Markdown.

    Args:
        name: title of the model.
        saved: the checkpoint that was exported.
        averaged: whether the weights are the averages of optim.ema.
        longest: tokens of the longest text that the model reads; None where its positions have no end.
        kind: the objective that the model is for.
    """
    config, data, step = Config.model_validate(saved.state["config"]), saved.state["data"], saved.step
    rows = saved.state["position"]["dealt"]
    lengths = " and ".join(str(stage.seq_len) for stage in config.stages if stage.after_step < step)
    fingerprint = saved.state["identity"]["data.train (fingerprint)"]
    titles = " and ".join(one.title for one in config.objective_kinds)
    use = _PREFIX if kind.view is View.PREFIX else _USES[kind.pipeline]
    use += _BOTH_SIDES if kind.causal and config.model.arch != "modernbert" else ""
    weights = f"averaged over the steps (EMA, decay {config.optim.ema})" if averaged else "of the last step"
    reads = f"{longest:,} tokens" if longest else f"no limit, but none longer than {lengths} tokens in training"
    return f"""---
library_name: transformers
pipeline_tag: {kind.pipeline}
---
# {name}

A model pretrained with Maskwright for {titles}: {config.model.title} (layers x hidden units).

| | |
|---|---|
| steps | {step:,} of {config.train.steps:,} |{_parent_line(config)}
| weights | {weights} |
| attention | {kind.view.value} |
| rows seen | {rows:,} of {lengths} tokens |
| longest text | {reads} |
{_objective_lines(config, step)}
| training data | {data["documents"]:,} documents, {data["tokens"]:,} tokens (fingerprint `{fingerprint}`) |
| seed | {config.run.seed} |

{use}{_VERSION_5 if needs_version_5(model.config) else ""}"""


@dataclass(frozen=True)
class Figure:
    """A measured figure of a model, for its card.

    Attributes:
        task: type of task on the Hugging Face Hub, such as fill-mask. data: name of the data set.
        metric: type of metric, such as accuracy. name: of the metric in words, with its unit.
        interval: at 95%; None if it is not known. settings: of the measurement, in words.
    """

    task: str
    data: str
    metric: str
    name: str
    value: float
    interval: tuple[float, float] | None
    settings: str


def published_card(
    card: str, repository: str, figures: Sequence[Figure], sections: str = "", licence: str | None = None
) -> str:
    """The model card of a published model: the card of its export, with the new name, figures and more sections.

    Args:
        repository: OWNER/NAME. sections: see training_sections. licence: its id on the Hugging Face Hub.

    Raises:
        UserError: if the metadata at the start of `card` are no YAML mapping.
    """
    name = repository.partition("/")[2]
    front = _FRONT_MATTER.match(card)
    try:
        metadata = dict(yaml.safe_load(front[1])) if front else {"library_name": "transformers"}
    except (yaml.YAMLError, TypeError, ValueError):
        raise UserError("README.md of the model has metadata that are no YAML mapping. Correct them.") from None
    metadata = {key: value for key, value in metadata.items() if key not in ("thumbnail", "widget")}  # remote images
    metadata |= {"license": licence} if licence else {}
    metadata |= {"model-index": [{"name": name, "results": [*map(_result, figures)]}]} if figures else {}
    text = re.sub(r"\A\s*# .*", "", card[front.end() :] if front else card).replace(_PLACE, repository).strip()
    # The folder may be of somebody else: the page must run no HTML, and load no image from another server.
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text).replace("![", r"\![")
    parts = [f"# {name}", text, _evaluation(figures), sections.strip()]
    body = "\n\n".join(part for part in parts if part)
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n{body}\n"


def _result(figure: Figure) -> dict[str, Any]:
    """A figure in the form of `model-index`, with the interval in the arguments of the metric."""
    arguments = {"settings": figure.settings} | ({"interval_95": list(figure.interval)} if figure.interval else {})
    metric = {"type": figure.metric, "value": figure.value, "name": figure.name, "args": arguments}
    return {
        "task": {"type": figure.task},
        "dataset": {"type": figure.data, "name": figure.data},
        "metrics": [metric],
    }


def _evaluation(figures: Sequence[Figure]) -> str:
    rows = [
        (one.data, one.name, f"{one.value:.4f}", " to ".join(f"{end:.4f}" for end in one.interval or ()), one.settings)
        for one in figures
    ]
    head = ("data", "metric", "value", "95% interval", "settings")
    return f"## Evaluation\n\n{markdown_table(head, rows).rstrip()}" if rows else ""


def merged_card(card: str, title: str, parts: Iterable[tuple[str, float]]) -> str:
    """The model card of a merge, made from the card of its last part.

    Args:
        title: of the weights.
        parts: names and weights.
    """
    card = re.sub(r"(?<=^\| weights \| ).*(?= \|$)", lambda _: title, card, count=1, flags=re.MULTILINE)
    rows = "".join(f"| {name} | {weight:.4g} |\n" for name, weight in parts)
    return f"{card.rstrip()}\n\nThe weights are {title}:\n\n| model | weight |\n|---|---|\n{rows}"


def _parent_line(config: Config) -> str:
    """A line of the table about the run that this one was branched from, if there is one."""
    path = Path(config.run.resume)
    of = step_of(path.name)
    return "" if of is None else f"\n| branched from | step {of:,} of the run {path.parent.parent.name} |"


def _objective_lines(config: Config, step: int) -> str:
    """Lines of the table: what each objective predicts and its share of the rows, in each phase up to this step."""
    lines = []
    for phase in config.run_phases:
        if phase.start < step:
            if phase.name:
                lines.append(f"| phase {phase.name} | steps {phase.start + 1:,} to {min(phase.end, step):,} |")
            lines.append(_lines_of_phase(phase.config))
    return "\n".join(lines)


def _lines_of_phase(config: Config) -> str:
    if len(config.objectives) == 1:
        return f"| {config.objective_kind.predicts(config.masking)} |"
    lines = []
    for one, kind in zip(config.objectives, (OBJECTIVES[one.kind] for one in config.objectives), strict=True):
        share = " to ".join(f"{end:.4g}" for end in dict.fromkeys(one.ends))
        what = ": ".join(kind.predicts(config.masking).split(" | "))
        weight = f", weight {one.weight:g}" if one.weight else ""
        lines.append(f"| {kind.title} | share of the rows {share}{weight}; {what} |")
    return "\n".join(lines)
