"""Time of the parts of a step, and the sizes of its matrix products.

The parts are ranges in torch.profiler. Hooks of the encoder's modules open and close them in the forward pass. An
operation of the backward pass has the sequence number of its forward operation, and so its part.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.product_rates import Sizes
from benchmarks.step_work import Batch, Side, Work
from pretrain.data import BatchStage, Loader, Sources

PARTS = ("embedding", "attention", "MLP", "norm", "head", "clipping", "optimizer", "residual and other")
_PREFIX, _BACKWARD = "part: ", "autograd::engine::evaluate_function: "


def parts_of(side: Side, batches: Iterator[Batch], steps: int) -> dict[str, float]:
    """Shares of PARTS in a step; seconds per step of "data" and, of these, "masking" in the loader's thread."""
    handles = list(_marked(side.model))
    events = profiled(side, batches, steps, {ProfilerActivity.CPU})
    for handle in handles:
        handle.remove()
    times = _times(events)
    whole = sum(times.values())
    return {part: times[part] / whole for part in PARTS} | loader_seconds(side.work, steps)


def profiled(
    side: Side, batches: Iterator[Batch], steps: int, activities: set[ProfilerActivity]
) -> list[FunctionEvent]:
    """Events of steps, after one that is not counted. GPU kernels are always among the activities."""
    cuda = side.work.device == "cuda"
    first, *taken = (next(batches) for _ in range(steps + 1))
    side.step(first)
    torch.cuda.synchronize() if cuda else None
    with profile(activities=activities | ({ProfilerActivity.CUDA} if cuda else set())) as found:
        for batch in taken:
            side.step(batch)
        torch.cuda.synchronize() if cuda else None
    return list(found.events())


def _marked(model: nn.Module) -> Iterator[Any]:
    """Hooks that open and close the parts; "embedding" includes its norm, "attention" its projections."""
    opened: list[record_function] = []

    def open_(part: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            opened.append(record_function(_PREFIX + part))
            opened[-1].__enter__()

        return hook

    def close(*_: Any) -> None:
        opened.pop().__exit__(None, None, None)

    def between(first: nn.Module, last: nn.Module, part: str) -> Iterator[Any]:
        yield first.register_forward_pre_hook(open_(part))
        yield last.register_forward_hook(close)

    for name, module in model.named_modules():
        if name.endswith("norm") and name not in ("embedding_norm", "head_norm"):
            yield from between(module, module, "norm")
        if name.endswith("qkv"):
            layer = model.get_submodule(name.rpartition(".")[0])
            yield from between(layer.qkv, layer.attention_out, "attention")  # type: ignore[arg-type]
            yield from between(layer.mlp_in, layer.mlp_out, "MLP")  # type: ignore[arg-type]
    yield model.register_forward_pre_hook(open_("embedding"))
    yield model.embedding_norm.register_forward_hook(close)  # type: ignore[union-attr]
    yield model.head_dense.register_forward_pre_hook(open_("head"))  # type: ignore[union-attr]
    yield model.register_forward_hook(close)


def _times(events: list[FunctionEvent]) -> Counter[str]:
    """Microseconds of each part, on a CPU."""
    times: Counter[str] = Counter()
    part_of: dict[int, str] = {}
    whole = 0.0
    for event in events:
        part = _part(event)
        if part and event.name.startswith(_PREFIX):
            times[part] += event.cpu_time_total
            if outer := _part(event.cpu_parent):  # a norm within "attention" or "MLP"
                times[outer] -= event.cpu_time_total
        elif part and event.sequence_nr >= 0:
            part_of.setdefault(event.sequence_nr, part)
        if event.cpu_parent is None:
            whole += event.cpu_time_total
    for event in events:
        if event.name.startswith(_BACKWARD):
            times[part_of.get(event.sequence_nr, PARTS[-1])] += event.cpu_time_total
    named = sum(time for part, time in times.items() if part != PARTS[-1])
    times[PARTS[-1]] = max(times[PARTS[-1]], whole - named)
    return times


def _part(event: FunctionEvent) -> str | None:
    while event is not None:
        if event.name.startswith(_PREFIX):
            return event.name.removeprefix(_PREFIX)
        event = event.cpu_parent
    return None


def loader_seconds(work: Work, steps: int) -> dict[str, float]:
    """Seconds per step in the loader's thread: of all data, without masking, and of masking."""
    config = work.config
    loader = Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), 0)
    masking, mask = [0.0], loader.objectives[0]

    class Timed:
        def __getattr__(self, name: str) -> Any:
            return getattr(mask, name)

        def __call__(self, *arguments: Any) -> Any:
            begin = time.perf_counter()
            masked = mask(*arguments)
            masking[0] += time.perf_counter() - begin
            return masked

    loader.objectives = [Timed()]
    done, masking[0] = loader.step(0, loader.mixture.start()), 0.0
    begin = time.perf_counter()
    for number in range(1, steps + 1):
        done = loader.step(number, done.after)
    seconds = time.perf_counter() - begin
    loader.close()
    return {"data": (seconds - masking[0]) / steps, "masking": masking[0] / steps}


def products_of_step(work: Work, tokens: int, predictions: int) -> Sizes:
    """The matrix products of a step, each forward and backward."""
    shape = work.shape
    wide = shape.intermediate * (2 if shape.gated else 1)
    return {
        "query, key, value": (tokens, shape.hidden, 3 * shape.hidden),
        "attention out": (tokens, shape.hidden, shape.hidden),
        "MLP in": (tokens, shape.hidden, wide),
        "MLP out": (tokens, shape.intermediate, shape.hidden),
        "vocabulary": (predictions, shape.hidden, shape.padded_vocab_size),
    }
