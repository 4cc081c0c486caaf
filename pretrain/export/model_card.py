"""The model card of an export or a merge: how the model was trained, and how to use it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.checkpoint import Checkpoint, step_of
from pretrain.config import OBJECTIVES, Config, ObjectiveKind, View
from pretrain.export.transformers_folder import needs_version_5

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PLACE = "PATH_OF_THIS_FOLDER"
"""What an export's card writes for the place of the model."""

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
    for objective in config.objectives:
        kind = OBJECTIVES[objective.kind]
        share = " to ".join(f"{end:.4g}" for end in dict.fromkeys(objective.ends))
        what = ": ".join(kind.predicts(config.masking).split(" | "))
        weight = f", weight {objective.weight:g}" if objective.weight else ""
        lines.append(f"| {kind.title} | share of the rows {share}{weight}; {what} |")
    return "\n".join(lines)
