"""Estimate whether the host or the GPU decides the time of a step: the host starts the kernels that the GPU computes.

A ModernBERT of 7 layers took 20 ms a step on an H100 that reached 1% of its peak: nearly all of it time of the host
(benchmarks/results/first_model_h100.md), with compiled kernels. How it divides between layers and the rest is assumed:
not measured for other depths, nor without compiled kernels.
"""

import math

from pretrain.model import EncoderShape
from pretrain.planning.run_plan import RunPlan

_LAYER_SECONDS, _STEP_SECONDS = 2e-3, 6e-3  # of a layer, forward and backward; of all else in a step
_SHARE, _WIDTH = 0.2, 768  # of the peak that a step is assumed to reach from this hidden size on; less below it
_LARGEST_FACTOR = 8  # of a larger batch that is recommended
BUSY = 0.5  # of a step: if a GPU computes for a smaller share, twice the rows take about as long
MOST_EPOCHS = 40  # no text is read more often for a larger batch


def host_seconds(layers: int, passes: int = 1) -> float:
    """The estimated seconds that the host needs to start the kernels of a step with these micro-batches."""
    return _STEP_SECONDS + _LAYER_SECONDS * layers * passes


def gpu_seconds(flops: float, hidden: int, tflops: float) -> float:
    """The estimated seconds of a step on GPUs. tflops: their peak, in 10**12 operations a second."""
    return flops / (_SHARE * min(1, hidden / _WIDTH) * tflops * 1e12)


def host_advice(planned: RunPlan, shape: EncoderShape, tflops: float) -> str | None:
    """What to change if the host decides the time of a planned step. tflops: peak of each GPU."""
    repeats = MOST_EPOCHS / max([1.0, *(planned.epochs or {}).values()])
    for stage in planned.stages:
        needed = gpu_seconds((stage.flops or 0) / stage.steps / planned.processes, shape.hidden, tflops)
        host = host_seconds(shape.layers, stage.accumulation)
        if needed >= BUSY * host or (planned.automatic and stage.accumulation > 1):
            continue
        factor, rows = 2 ** int(math.log2(min(_LARGEST_FACTOR, host / needed, repeats))), stage.global_batch_size
        if stage.accumulation > 1:
            change = f"Leave out train.micro_batch_size ({stage.micro_batch_size:,})."
        elif factor > 1:
            short = "" if planned.epochs else ", unless the text is short"
            change = f"Raise train.global_batch_size ({rows:,}), for example to {factor * rows:,}{short}."
        else:  # a larger batch would read the text too often
            continue
        times = f"starts the kernels of a step in about {1e3 * host:.0f} ms, and the GPU needs {1e3 * needed:.2g} ms"
        phase = f" in phase {stage.phase}" if stage.phase else ""
        return f"The GPU waits for the host{phase}: the host {times} (estimated). {change}"
    return None
