"""Memory by formula, compared with the real model: exact parameters, and activations that torch keeps."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config import Config, OptimConfig, View
from pretrain.config.training import ZeroConfig
from pretrain.masking import RowGroup
from pretrain.model import Encoder, EncoderCosts, EncoderShape, peak_tflops
from pretrain.model.model_costs import PEAK_TFLOPS, logit_bytes
from pretrain.optim import build_optimizer
from pretrain.planning.collectives import GPUS
from pretrain.planning.run_plan import Planner
from pretrain.planning.training_memory import Memory, groups, last_gradients, peak_bytes, states
from tests.support.configs import least_config
from tests.support.streams import ARCHS, stream
from tests.support.tensor_memory import TensorMemory

GB = 10**9
CASES = [(32, 512, 2458, 3, 768, 3072, 12), (2, 128, 40, 2, 256, 512, 4), (4, 8192, 1000, 4, 768, 1152, 12)]

MIXED = [{"kind": "mlm", "share": 0.5}, {"kind": "clm", "share": 0.5}]


class RmsNormOfCuda(torch.autograd.Function):
    """Keeps what torch's CUDA kernel keeps: its input, and the scale of each row. On a CPU, torch keeps more."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = (x.float().square().mean(1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, of_out):
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), None


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(F, "rms_norm", lambda x, shape, weight, eps: RmsNormOfCuda.apply(x, weight, eps))


def shape_of(arch: str, **sizes: int) -> EncoderShape:
    """A EuroBERT has groups of heads where the number of heads is even, an ESM token dropout."""
    form = {"eurobert": {"kv_heads": sizes["heads"] // 2 or 1}, "esm": {"mask_id": 9}}.get(arch, {})
    return EncoderShape(arch=arch, pad_id=0, **{"vocab_size": 30522, "max_positions": 128} | form | sizes)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("layers", [1, 3])
def test_parameters_are_those_of_the_model(arch, layers):
    shape = shape_of(arch, layers=layers, hidden=24, heads=2, intermediate=40, vocab_size=99)
    with torch.device("meta"):
        model = Encoder(shape)
    found = EncoderCosts(shape).sizes
    whole = build_optimizer(model, OptimConfig()).param_groups
    real = {group["kind"]: sorted(p.numel() for p in group["params"]) for group in whole}
    assert {kind: sorted(numels) for kind, numels in found.by_kind.items()} == real
    assert found.total == sum(p.numel() for p in model.parameters())
    by_depth = build_optimizer(model, OptimConfig(), depths=8).param_groups
    assert [sum(numels) for _, numels in groups(found, 8)] == [sum(p.numel() for p in g["params"]) for g in by_depth]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES)
def test_activations_of_a_gpu(arch, case, checkpointing):
    """In bf16 with varlen attention and plain operations, as a GPU computes, on "meta" tensors, which have sizes alone.

    Kept memory agrees within 2%; the peak, which includes temporary tensors, within 8%.
    """
    rows, seq_len, k, layers, hidden, wide, heads = case
    n = rows * seq_len
    shape = shape_of(arch, layers=layers, hidden=hidden, heads=heads, intermediate=wide, max_positions=seq_len)
    with torch.device("meta"):
        model = Encoder(shape, backend="varlen").to(torch.bfloat16)
    if checkpointing:
        model.checkpoint_layers()
    ids = [torch.empty(size, dtype=torch.int64, device="meta") for size in (n, n, 200, k, k)]
    with TensorMemory(model) as memory:
        loss = model(ids[0], ids[1], ids[2].int(), *ids[3:], seq_len).loss
    kept = memory.bytes
    with memory:
        loss.backward()
    found = EncoderCosts(shape).activations(n, k, seq_len, 2, checkpointing=checkpointing)
    assert found.kept == pytest.approx(kept, rel=0.02)
    most = max(found.peak, last_gradients(EncoderCosts(shape).sizes, config(1)))
    assert most == pytest.approx(memory.peak, rel=0.08)


@pytest.mark.parametrize(
    ("objective", "groups"),
    [
        ("mlm", (RowGroup(0, View.BIDIRECTIONAL, 4, 4 * 76),)),
        (MIXED, (RowGroup(0, View.BIDIRECTIONAL, 2, 2 * 76), RowGroup(1, View.CAUSAL, 2, 2 * 510))),
    ],
)
def test_the_views_of_a_phase_decide_what_its_last_layer_keeps(objective, groups):
    """Within 3%: attention of several views keeps a copy of its results."""
    sizes = {"layers": 2, "hidden": 256, "heads": 4, "intermediate": 512}
    train = {"global_batch_size": 4, "micro_batch_size": 4}
    settings = least_config(model={"size": sizes}, data={"seq_len": 512}, objective=objective, train=train)
    planner = Planner(settings, None, 30522)
    k = sum(group.places for group in groups)
    with torch.device("meta"):
        model = Encoder(planner.shape, backend="varlen").to(torch.bfloat16)
    ids = [torch.empty(size, dtype=torch.int64, device="meta") for size in (2048, 2048, 5, k, k)]
    with TensorMemory(model) as memory:
        loss = model(ids[0], ids[1], ids[2].int(), *ids[3:], 512, groups=groups).loss
    assert loss.requires_grad  # it holds what the pass keeps
    planned = {item.name: item.device for item in planner.plan(1).stages[-1].memory}
    assert planned["activations"] == pytest.approx(memory.bytes, rel=0.03)


@pytest.mark.parametrize("arch", ARCHS)
def test_saved_tensors_on_a_cpu(arch):
    """In fp32 through sdpa, by autograd's own hooks: within 5% (its log-sum-exp and statistics lie otherwise)."""
    lengths, seq_len = [40, 24, 64, 30, 34], 64
    shape = shape_of(arch, layers=4, hidden=64, heads=4, intermediate=96, vocab_size=90, max_positions=seq_len)
    model = Encoder(shape, backend="sdpa")
    model.initialize(0)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    batch = stream(lengths)
    weights |= {tensor.untyped_storage().data_ptr() for tensor in batch.values()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(**batch, seq_len=seq_len)
    found = EncoderCosts(shape).activations(sum(lengths), 6, seq_len, 4, masked=True)
    assert sum(storage.nbytes() for storage in saved.values()) == pytest.approx(found.kept, rel=0.05)


def test_kernels_keep_less_of_modernbert_alone():
    for arch, less in (("bert", 0), ("modernbert", 2 * 768 + 1152)):
        shape = shape_of(arch, layers=3, hidden=768, heads=12, intermediate=1152)
        plain, fused = (EncoderCosts(shape).activations(1000, 10, 500, 2, fused=way).kept for way in (False, True))
        assert (plain - fused) == 2 * (1000 * less * 2) + 2 * (1000 * 2 * 768 + 10 * 1152) * (less > 0)


@pytest.mark.parametrize(
    ("gpu_bytes", "fused", "gib"),
    [
        (None, True, 1),
        (24 * GB, True, 1),
        (40 * GB, True, 2),
        (80 * GB, True, 4),
        (85 * GB, True, 4),
        (192 * GB, True, 4),
        (80 * GB, False, 1),
    ],
)
def test_logits_have_a_share_of_the_memory_of_a_gpu(gpu_bytes, fused, gib):
    assert logit_bytes(gpu_bytes, fused) == gib << 30
    shape = shape_of("bert", layers=1, hidden=64, heads=4, intermediate=64, vocab_size=1 << 16)
    found = EncoderCosts(shape).activations(1 << 20, 1 << 18, 512, 2, fused, gpu_bytes=gpu_bytes)
    assert found.head == (gib << 30) * (1 if fused else 5)


def config(stage: int, precision: str = "bf16", **optim: object) -> Config:
    return least_config(optim=optim, zero={"stage": stage}, train={"precision": precision})


SIZES = {"layers": st.integers(1, 6), "hidden": st.sampled_from([64, 128, 320]), "heads": st.just(4)}
SIZES |= {"intermediate": st.integers(64, 700), "vocab_size": st.integers(50, 5000)}
SHAPES = st.builds(shape_of, st.sampled_from(ARCHS), **SIZES)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(1, 512), st.sampled_from(["adamw", "lamb", "muon"]))
def test_zero_divides_as_it_says(shape, processes, name):
    """Stage 1 the optimizer's state and fp32 weights, 2 gradients too, 3 all; up to what fills the parts up."""
    found = EncoderCosts(shape).sizes
    total, kinds = found.total, found.groups
    moments = sum((1 if name == "muon" and kind == "matrix" else 2) * sum(numels) for kind, numels in kinds)
    for stage in (1, 2, 3):
        items = {item.name: item for item in states(config(stage, name=name), found, processes)}
        spare = 4 * 2 * sum(len(numels) + 2 for _, numels in kinds) + 64
        assert 0 <= items["optimizer state"].device - 4 * moments / processes <= 2 * spare
        assert 0 <= items["fp32 weights"].device - 4 * total / processes <= spare
        share = processes if stage == 3 else 1
        assert 0 <= items["weights"].device - 2 * total / share <= spare
        share = processes if stage > 1 else 1
        own = 4 * total / processes if stage == 1 and processes > 1 else 0
        filled = 8 * processes * (len(kinds) + 7) if stage == 1 else 0  # the matrices are up to eight groups
        assert 0 <= items["gradients"].device - 4 * total / share - own <= 2 * spare + filled


def test_the_peak_is_that_of_the_pass_or_of_the_step():
    items = [Memory("a", 5), Memory("b", 3, when="pass"), Memory("c", 4, when="step"), Memory("d", 0, 9)]
    assert peak_bytes(items) == 9
    assert peak_bytes([*items, Memory("e", 2, when="pass")]) == 10


def test_every_gpu_that_has_memory_has_a_peak():
    assert all(peak_tflops(name) for name in GPUS)
    assert all(any(peak in name for name in GPUS) for peak in PEAK_TFLOPS)


def test_the_same_bytes_wherever_they_are_offloaded():
    shape = shape_of("bert", layers=2, hidden=24, heads=2, intermediate=40)
    found = {}
    for offload in ("none", "cpu"):
        settings = config(3).model_copy(update={"zero": ZeroConfig(stage=3, offload=offload)})
        items = {item.name: item for item in states(settings, EncoderCosts(shape).sizes, processes=2)}
        found[offload] = items["optimizer state"], items["fp32 weights"]
    for none, cpu in zip(*found.values(), strict=True):
        assert (none.device, 0) == (cpu.host, cpu.device)
