"""`maskwright plan`: estimate memory and time of a run before it is submitted."""

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from data_prep.common.errors import UserError, concise
from launchers.arguments import ConfigArgument, JsonFlag, Overrides, YesOption, load_trusted_config
from launchers.display import print_scaling, text_console, text_table

if TYPE_CHECKING:
    from pretrain.config import Config
    from pretrain.planning import Planner, Rate, RunPlan

_GIB = 1 << 30


def plan(
    config: ConfigArgument,
    overrides: Overrides = None,
    nodes: Annotated[
        str, typer.Option(metavar="N[,N]...", help="number of nodes; several numbers print a scaling table")
    ] = "1",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="training processes per node, one per GPU")] = 1,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU model that sets memory and peak FLOP/s, for example H100")
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(metavar="GB", min=1, help="memory of a GPU that --gpu does not list")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="use the speed per GPU that was measured in this run")
    ] = None,
    mfu: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="assumed share of the peak FLOP/s of --gpu")
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1e-6, help="assumed speed of all GPUs together, without padding")
    ] = None,
    tflops: Annotated[float | None, typer.Option(min=1e-6, help="assumed TFLOP/s of each GPU")] = None,
    network: Annotated[
        str | None, typer.Option(metavar="NAME", help="scaling table: NICs of a node, for example 400g or 8x400g")
    ] = None,
    tokens_per_gpu: Annotated[
        int | None,
        typer.Option(min=1, help="scaling table: tokens per GPU and step; by default the config's batch is divided"),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=8, help="plan without data, for a vocabulary of N tokens")
    ] = None,
    yes: YesOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Estimate what a run needs: memory per GPU, tokens, epochs, days.

    Memory comes from formulas that tests compare with the real engine. Speed is measured (--from) or assumed
    (--mfu, --tflops, --tokens-per-second). Without one of these options, time is not estimated.

    With --network, or several numbers of --nodes, it prints the step time and its parts for each number of nodes.

    Examples:

        maskwright plan configs/bert-base.yaml --gpus-per-node 8 --gpu H100 --vocab-size 30522
        maskwright plan run.yaml --nodes 4 --gpus-per-node 8 --gpu H100 --from runs/trial
        maskwright plan run.yaml --gpus-per-node 8 --gpu A100-80GB --mfu 0.4 train.micro_batch_size=64 --json
        maskwright plan run.yaml --nodes 1,2,8,32 --gpus-per-node 8 --gpu H100 --mfu 0.4 --network 400g
    """
    from launchers.local import gpu_count
    from pretrain.data import mixture_line
    from pretrain.model import peak_tflops
    from pretrain.planning import GpuMemory, ScalingRequest, host_advice, other_device, print_warnings

    parsed, counts = load_trusted_config(config, overrides, yes), _node_counts(nodes)
    memory = GpuMemory.of(gpu, gpu_memory)
    rate = _rate(gpu, parsed.train.precision, run, mfu, tokens_per_second, tflops)
    if run and (device := other_device(run, gpu, memory is not None or gpu_count() > 0)):
        rate = None
        print_warnings([concise(f"{run} was trained on {device}, not on {gpu or 'a GPU'}: its speed is not used.")])
    if len(counts) > 1 or network or tokens_per_gpu:
        asked = ScalingRequest(counts, gpus_per_node, gpu, network, tokens_per_gpu, rate)
        print_scaling(parsed, _planner(parsed, vocab_size), asked, as_json)
        return
    planner = _planner(parsed, vocab_size)
    planned = planner.plan(counts[0] * gpus_per_node, memory, rate)
    peak = peak_tflops(gpu) if gpu and parsed.train.precision != "fp32" else None
    advice = host_advice(planned, planner.shape, peak) if peak and planner.shape else None
    if as_json:
        print(json.dumps(_facts(planned) | {"advice": advice}, indent=1))
        return
    console = text_console()
    title = f"{parsed.model.title}, {planned.parameters:,} parameters, on {_devices(planned)}"
    console.print(f"{title} ({counts[0]} x {gpus_per_node})")
    console.print(_work(planned))
    for stage in planned.stages:
        if len(stage.shares) > 1:
            console.print(mixture_line(stage.phase, stage.shares))
    console.print(_memory(parsed, planned))
    console.print(_fit_line(planned))
    if planned.choices:
        console.print(_choices(planned))
    console.print(_speed(planned))
    if planned.time:
        console.print("Steps alone: the start, evaluation and checkpoints come on top.")
    if advice:
        console.print(advice)


def _node_counts(text: str) -> list[int]:
    """The numbers of --nodes. Raises UserError if they are not whole numbers from 1, separated by commas."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--nodes {text!r} is not a number of nodes, or several with commas, such as 1,2,8,32")
    return [int(word) for word in words]


def _planner(config: "Config", vocab_size: int | None) -> "Planner":
    from pretrain.data import Sources
    from pretrain.planning import Planner

    if vocab_size is not None:
        return Planner(config, None, vocab_size)
    try:
        sources = Sources.open(config)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; to plan without the data, give --vocab-size") from None
    return Planner(config, sources)


def _rate(
    gpu: str | None,
    precision: str,
    run: Path | None,
    mfu: float | None,
    tokens_per_second: float | None,
    tflops: float | None,
) -> "Rate | None":
    """The speed by the options. gpu: the model of a GPU. precision: train.precision."""
    from pretrain.model import peak_tflops
    from pretrain.planning import Rate, measured_rate

    given = {"--from": run, "--mfu": mfu, "--tokens-per-second": tokens_per_second, "--tflops": tflops}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} both set the speed of the run. Give one of them.")
    if run is not None:
        return measured_rate(run)
    if mfu is not None and precision == "fp32":
        add = "Add train.precision=bf16, or give --tokens-per-second"
        raise UserError(f"--mfu is a share of a bf16 peak, and train.precision is fp32. {add}.")
    if mfu is not None:
        peak = peak_tflops(gpu) if gpu else None
        if peak is None:
            raise UserError("--mfu is a share of a bf16 peak. Name a GPU with --gpu, or give --tokens-per-second.")
        return Rate(f"given: {mfu:.0%} of {peak} TFLOP/s, the dense bf16 peak of {gpu}", tflops=mfu * peak)
    if tflops is not None:
        return Rate(f"given: {tflops:g} TFLOP/s of each GPU", tflops=tflops)
    if tokens_per_second is not None:
        return Rate(f"given: {tokens_per_second:,g} tokens/s", tokens_per_second=tokens_per_second)
    return None


def _facts(planned: "RunPlan") -> dict[str, Any]:
    totals = ("device_bytes", "host_bytes")
    stages = [asdict(stage) | {name: getattr(stage, name) for name in totals} for stage in planned.stages]
    names = ("processes", "parameters", "tokens", "flops", "epochs", "activations_known", "automatic")
    return {
        **{name: getattr(planned, name) for name in names},
        "stages": stages,
        "usable_bytes": planned.gpu.usable if planned.gpu else None,
        "device_bytes": planned.largest.device_bytes,
        "fits": planned.fits,
        "choices": [asdict(choice) for choice in planned.choices],
        "speed": [asdict(planned.time)] if planned.time else [],
    }


def _work(planned: "RunPlan") -> Table:
    named = ["phase"] if planned.stages[0].phase else []
    table = text_table(
        (*named, "steps", "seq_len", "rows a step", "micro-batch", "passes", "tokens", "FLOP"), title="Work"
    )
    for stage in planned.stages:
        flops = "not known" if stage.flops is None else f"{stage.flops:.3g}"
        sizes = (stage.seq_len, stage.global_batch_size, stage.micro_batch_size, stage.accumulation)
        phase = [stage.phase] if named else []
        table.add_row(*phase, f"{stage.steps:,}", *(f"{size:,}" for size in sizes), f"{stage.tokens:.4g}", flops)
    if planned.epochs is None:
        table.caption = "without data: rows are taken to be full, each of one document"
    else:
        table.caption = "epochs: " + ", ".join(f"{name} {epochs:.3g}" for name, epochs in planned.epochs.items())
    table.caption_justify = "left"
    return table


def _memory(config: "Config", planned: "RunPlan") -> Table:
    stage = planned.largest
    automatic = ", chosen automatically" if planned.automatic else ""
    where = f"ZeRO {config.zero.stage}, {config.train.precision}, "
    where += f"micro-batch {stage.micro_batch_size} x {stage.seq_len}{automatic}"
    table = text_table(("GiB", "GPU", "host", "when"), title=f"Memory of a GPU ({where})")
    for item in stage.memory:
        if item.device or item.host:
            table.add_row(item.name, _gib(item.device), _gib(item.host), item.when)
    table.add_section()
    table.add_row("peak", _gib(stage.device_bytes), _gib(stage.host_bytes), "")
    if not planned.activations_known:
        table.caption, table.caption_justify = "activations are not known for arch auto", "left"
    return table


def _fit_line(planned: "RunPlan") -> str:
    gpu = planned.gpu
    if gpu is None:
        return "Whether it fits: name a GPU with --gpu, or give --gpu-memory."
    said = {True: "It fits", False: "It does not fit", None: "Without activations it fits"}[planned.fits]
    return (
        f"{said}: {_gib(planned.largest.device_bytes)} of {_gib(gpu.usable)} GiB of {gpu.description}; "
        f"{_gib(gpu.reserved)} GiB are assumed to go to CUDA, NCCL and the allocator."
    )


def _choices(planned: "RunPlan") -> Table:
    rows = [
        (choice.change, str(choice.micro_batch_size or "none fits"), _gib(choice.device_bytes))
        for choice in planned.choices
    ]
    return text_table(("with", "rows", "GiB"), rows, title="The largest micro-batch that fits")


def _speed(planned: "RunPlan") -> Table | str:
    time = planned.time
    if time is None:
        mfu = "--gpu with --mfu (one H100 reached 0.3 to 0.45)"
        return f"Speed: not known. Give --from RUN of a trial on such GPUs, {mfu}, --tflops or --tokens-per-second."
    duration = str(timedelta(seconds=round(min(time.seconds, 1e13))))  # timedelta holds little more
    row = (time.source, f"{time.tokens_per_second:,.0f}", duration, f"{time.gpu_hours:,.1f}")
    return text_table(("speed", "tokens/s", "time", "GPU hours"), [row], title="Time")


def _devices(planned: "RunPlan") -> str:
    """The number of GPUs in words; of processes, if no GPU is named and this machine has none."""
    from launchers.local import gpu_count

    singular, plural = ("GPU", "GPUs") if planned.gpu or gpu_count() else ("process", "processes")
    return f"{planned.processes} {singular if planned.processes == 1 else plural}"


def _gib(size: int) -> str:
    """GiB with two digits after the point, or two digits of less than 0.1."""
    return f"{size / _GIB:.2f}" if size / _GIB >= 0.1 or not size else f"{size / _GIB:.1g}"
