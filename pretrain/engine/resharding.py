"""Resharding: load a checkpoint under another number of processes, ZeRO stage or precision.

DeepSpeed spreads weights and optimizer state over its ranks as flat tensors, each holding parameters or parts of them;
which parts depends on the layout. Its own converter (`ds_to_universal`) changes the number of ranks alone: it neither
changes the stage nor knows stage 0. Here every layout, saved or live, is described in the same terms, as flat tensors
and their pieces, and each rank copies from the saved ones what its own are to hold. Nothing is converted on disk.

This module reads DeepSpeed's checkpoint files and changes the tensors of its optimizers, both as of DeepSpeed 0.19. It
imports DeepSpeed only to name the classes that those files may hold.
"""

import contextlib
import math
import os
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_prep.common.errors import UserError, one_line
from data_prep.common.reading import open_regular
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.distributed import run_on_all_ranks
from pretrain.optim import AVERAGE, Piece, optimizer_order

Layout = dict[str, Any]
DEEPSPEED_FOLDER = "deepspeed"  # in the folder of a checkpoint


@dataclass(frozen=True)
class Flat:
    """Pieces of parameters back to back: fp32 `weights` [n], and the optimizer's `state` for them.

    Of the state, tensors [n] (Adam's moments) run along with the weights; what is scalar (the step) holds for all.
    """

    weights: Tensor
    state: dict[str, Any]
    pieces: list[Piece]


def layout_of(config: Config) -> Layout:
    """The settings that decide how DeepSpeed spreads a run's state over files, as JSON values."""
    return {
        "processes": dist.get_world_size(),
        "zero.stage": config.zero.stage,
        "zero.offload": config.zero.offload,
        "train.precision": config.train.precision,
        "deepspeed": config.deepspeed,
    }


def gather(folder: Path, layout: Layout, names: Sequence[str], wanted: Sequence[tuple[int, list[Piece]]]) -> list[Flat]:
    """Flat tensors with the wanted pieces, from a checkpoint of any layout.

    Args:
        folder: DeepSpeed's folder in a verified checkpoint: its files are unpickled. They are mapped, not read: a rank
            reads the parts that it takes.
        layout: the checkpoint's.
        names: the model's parameters in the optimizer's order.
        wanted: of each tensor its number of elements and its pieces.

    Returns:
        For each of `wanted` a tensor on the CPU, zero outside its pieces.

    Raises UserError if the files are not what that layout writes, or lack a part of the wanted pieces.
    """
    with _as_written(folder, layout):
        saved = _saved(folder, layout, names)
        places = _places(saved)
        return [_copied(numel, pieces, places, saved[0]) for numel, pieces in wanted]


def load_weights(saved: Checkpoint, model: nn.Module, averaged: bool = False) -> None:
    """Load the fp32 weights of a verified checkpoint of any layout into a model, or their averages (optim.ema).

    Raises UserError if the files are not what that layout writes, or lack some of the parameters.
    """
    folder, layout, names = saved.path / DEEPSPEED_FOLDER, saved.state["layout"], optimizer_order(model)
    with _as_written(folder, layout):
        flats = _saved(folder, layout, names)
        places = _places(flats)
        for name in names:
            weights = model.get_parameter(name).data
            flat = _copied(weights.numel(), [Piece(name, 0, weights.numel(), 0)], places, flats[0])
            weights.copy_((flat.state[AVERAGE] if averaged else flat.weights).view(weights.shape))


@contextlib.contextmanager
def _as_written(folder: Path, layout: Layout) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{folder} cannot be split for another number of processes: its files are not the files of "
            f"{layout['processes']} processes with ZeRO {layout['zero.stage']} ({type(error).__name__}: {error})"
        ) from None


def _saved(folder: Path, layout: Layout, names: Sequence[str]) -> list[Flat]:
    """All flat tensors of a checkpoint."""
    stage, processes = layout["zero.stage"], layout["processes"]
    if stage == 0:
        return list(_whole_parameters(folder, names))
    return list(_flat_groups(folder, processes) if stage < 3 else _partitioned_parameters(folder, processes))


def _places(saved: Sequence[Flat]) -> dict[str, list[tuple[Flat, Piece]]]:
    """For each parameter, the flat tensors that hold its pieces."""
    places: dict[str, list[tuple[Flat, Piece]]] = defaultdict(list)
    for flat in saved:
        for piece in flat.pieces:
            places[piece.name].append((flat, piece))
    return places


def _copied(numel: int, pieces: list[Piece], places: dict[str, list[tuple[Flat, Piece]]], example: Flat) -> Flat:
    """A tensor of padding alone has moments too, with the keys and types of `example`."""
    example = next((flat for piece in pieces if piece.numel for flat, _ in places[piece.name]), example)
    weights = torch.zeros(numel)
    state = {k: torch.zeros(numel, dtype=v.dtype) if _runs_along(v) else v for k, v in example.state.items()}
    for piece in pieces:
        missing = piece.numel
        for flat, source in places[piece.name]:
            first = max(piece.start, source.start)
            count = min(piece.start + piece.numel, source.start + source.numel) - first
            if count <= 0:
                continue
            to, at = piece.offset + first - piece.start, source.offset + first - source.start
            weights[to : to + count] = flat.weights[at : at + count]
            for key, value in state.items():
                if _runs_along(value):
                    value[to : to + count] = flat.state[key][at : at + count]
            missing -= count
        if missing:
            raise ValueError(f"{missing} elements of parameter {piece.name} are nowhere")
    return Flat(weights, state, pieces)


def load_resharded(engine: Any, saved: Checkpoint, names: Sequence[str]) -> None:
    """Load a checkpoint of another layout; a collective.

    Args:
        engine: DeepSpeed's engine, before its first step.
        names: the model's parameters in the optimizer's order.
    """
    folder, layout, pieces = saved.path / DEEPSPEED_FOLDER, saved.state["layout"], local_pieces(engine)
    wanted = [(tensor.numel(), held) for tensor, held in pieces]
    gathered = run_on_all_ranks(lambda: gather(folder, layout, names, wanted))
    for (tensor, _), flat in zip(pieces, gathered, strict=True):
        tensor.data.view(-1).copy_(flat.weights)
        engine.basic_optimizer.state[tensor] = {
            key: (value.view(tensor.shape) if _runs_along(value) else value).to(tensor.device, copy=True)
            if torch.is_tensor(value)
            else value
            for key, value in flat.state.items()
        }
    _follow(engine)
    _load_loss_scale(engine, folder, layout)
    engine.global_steps = saved.step


def exchange_weights(engine: Any) -> None:
    """Exchange the fp32 weights and their averages; a collective."""
    for tensor, _ in local_pieces(engine):
        other = engine.basic_optimizer.state[tensor][AVERAGE]
        weights = tensor.detach().clone()
        tensor.data.copy_(other)
        other.copy_(weights)
    _follow(engine)


def _follow(engine: Any) -> None:
    """Bring the weights that the model computes with to the fp32 ones, which they follow."""
    optimizer, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 3:
        optimizer._partition_all_parameters()
        for number in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
        if small := optimizer.persistent_parameters:  # those that stay whole on every rank
            small[0].all_gather(small)
    elif stage > 0:
        optimizer.update_lp_params()


def _load_loss_scale(engine: Any, folder: Path, layout: Layout) -> None:
    """Resume with the loss scale of the checkpoint in DeepSpeed's `folder`, if both train in fp16 and adapt it."""
    if engine.fp16_enabled() and layout["train.precision"] == "fp16":
        saved = load_file(_of_rank(folder, 0, "optim"))["optimizer_state_dict"]["loss_scaler"]
        if saved.dynamic and engine.optimizer.loss_scaler.dynamic:
            for name in ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis"):
                setattr(engine.optimizer.loss_scaler, name, getattr(saved, name))


def local_pieces(engine: Any) -> list[tuple[Tensor, list[Piece]]]:
    """The fp32 tensors that this rank's optimizer steps on, and the pieces of parameters that each holds."""
    optimizer, names, stage = engine.optimizer, engine.param_names, engine.zero_optimization_stage()
    if stage == 0:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return [(p, [Piece(names[p], 0, p.numel(), 0)]) for p in parameters]
    if stage < 3:
        return [
            (flat, [_held(names[p], p._hp_mapping) for p in group if p._hp_mapping is not None])
            for flat, group in zip(optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, strict=True)
        ]
    shapes = [{names[p]: p.ds_numel for p in group} for group in optimizer.fp16_groups]
    flats = optimizer.fp32_partitioned_groups_flat
    return [
        (flat, _even_shares(group, dist.get_rank(), dist.get_world_size()))
        for flat, group in zip(flats, shapes, strict=True)
    ]


def _held(name: str, mapping: Any) -> Piece:
    """ZeRO 1 and 2: where a rank's part of a parameter lies in the parameter, and in the rank's flat tensor."""
    within, place = mapping.lp_fragment_address, mapping.hp_fragment_address
    return Piece(name, within.start, within.numel, place.start)


def _whole_parameters(folder: Path, names: Sequence[str]) -> Iterator[Flat]:
    """Stage 0: one file, of the model's and the optimizer's state dicts; the latter numbers the parameters."""
    saved = load_file(folder / "mp_rank_00_model_states.pt", mmap=True)
    for number, name in enumerate(names):
        weights = saved["module"][name].flatten()
        state = saved["optimizer"]["state"][number]
        flat = {key: value.flatten() if _runs_along(value) else value for key, value in state.items()}
        yield Flat(weights, flat, [Piece(name, 0, weights.numel(), 0)])


def _flat_groups(folder: Path, processes: int) -> Iterator[Flat]:
    """Stages 1 and 2: the parameters of a group back to back, cut into as many equal parts as there are ranks."""
    ends: Counter[str] = Counter()
    for rank in range(processes):
        saved = load_file(_of_rank(folder, rank, "optim"), mmap=True)["optimizer_state_dict"]
        weights, mappings = saved["single_partition_of_fp32_groups"], saved["param_slice_mappings"]
        for group, mapping in enumerate(mappings):
            pieces = []
            for name, place in mapping.items():
                pieces.append(Piece(name, ends[name], place.numel, place.start))
                ends[name] += place.numel
            yield Flat(weights[group], saved["base_optimizer_state"]["state"][group], pieces)


def _partitioned_parameters(folder: Path, processes: int) -> Iterator[Flat]:
    """Stage 3: each parameter cut into as many equal parts as there are ranks, the last ones padded."""
    for rank in range(processes):
        saved = load_file(_of_rank(folder, rank, "optim"), mmap=True)["optimizer_state_dict"]
        shapes = load_file(_of_rank(folder, rank, "model"), mmap=True)["param_shapes"]
        for number, group in enumerate(shapes):
            numels = {name: math.prod(shape) for name, shape in group.items()}
            state = saved["optimizer_state_dict"]["state"][number]
            yield Flat(saved["fp32_flat_groups"][number], state, _even_shares(numels, rank, processes))


def _even_shares(numels: dict[str, int], rank: int, processes: int) -> list[Piece]:
    pieces, offset = [], 0
    for name, numel in numels.items():
        share = -(-numel // processes)
        pieces.append(Piece(name, rank * share, max(0, min(share, numel - rank * share)), offset))
        offset += share
    return pieces


def _of_rank(folder: Path, rank: int, what: str) -> Path:
    (path,) = folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_{what}_states.pt")  # bf16_zero_... in that precision
    return path


def load_file(path: Path, mmap: bool = False) -> Any:
    """Read a file of DeepSpeed's, to the CPU.

    It is a pickle, read by torch's restricted unpickler: that makes tensors, plain containers and the classes below,
    and calls nothing else that a file may name.

    Raises UserError if it holds anything else.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would warn that it looked for others in vain
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def stage(kind: Any, name: str) -> ZeroStageEnum:
        """Python 3.11.0 to 3.11.3 pickles a stage as getattr(ZeroStageEnum, name)."""
        if kind is not ZeroStageEnum:
            raise pickle.UnpicklingError("GLOBAL getattr")
        return ZeroStageEnum[name]

    open_regular(path).close()
    allowed = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, (stage, "builtins.getattr")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not a file of a checkpoint ({type(error).__name__})") from None
    except pickle.UnpicklingError as error:
        match = re.search(r"(?:GLOBAL|global|class) ([\w.]+)", str(error))
        what = f"it asks for {match[1]}, which no checkpoint needs" if match else "it is not a checkpoint's"
        raise UserError(one_line(f"{path} is not loaded, as it could run code: {what}")) from None


def _runs_along(value: Any) -> bool:
    return torch.is_tensor(value) and value.ndim > 0
