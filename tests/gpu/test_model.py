"""The encoder on a GPU: flash attention agrees with fp32, documents stay separate, and the host never waits."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pretrain.config import View
from pretrain.masking import IGNORED, RowGroup
from pretrain.masking.rows import compact
from pretrain.model import Encoder, EncoderShape

SEQ_LEN = 256
LENGTHS = [256, 100, 120, 36, 200, 56, 17, 239]
SHAPE = EncoderShape(
    vocab_size=1000, layers=4, hidden=128, heads=2, intermediate=256, max_positions=SEQ_LEN, pad_id=0, norm_eps=1e-5
)
SHAPES = {
    "bert": SHAPE,
    "causal bert": replace(SHAPE, causal=True),
    "roberta": replace(SHAPE, arch="roberta"),
    "modernbert": replace(SHAPE, arch="modernbert", window=64),
    "eurobert": replace(SHAPE, arch="eurobert", heads=4, kv_heads=2),
    "esm": replace(SHAPE, arch="esm", mask_id=9),
}


def encoder(name: str, dtype: torch.dtype, dropout: float = 0.0) -> Encoder:
    model = Encoder(replace(SHAPES[name], dropout=dropout))
    model.initialize(0)
    return model.to("cuda", dtype)


def stream(lengths: list[int] = LENGTHS) -> dict[str, torch.Tensor]:
    """Rows with as many places each. Every third document predicts nothing, so that some places are unused."""
    generator = torch.Generator().manual_seed(1)
    n = sum(lengths)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    predicted = torch.arange(n).view(-1, SEQ_LEN) % SEQ_LEN % 7 == 3
    slots = int(predicted[0].sum())
    for begin, end in zip(bounds[2:-1:3], bounds[3::3], strict=True):
        predicted.view(-1)[begin:end] = False
    places, used = (torch.from_numpy(array).flatten() for array in compact(predicted.numpy(), slots))
    tensors = {
        "tokens": torch.randint(5, 1000, (n,), generator=generator),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
        "cu_seqlens": bounds.int(),
        "masked_positions": places,
        "labels": torch.randint(5, 1000, places.shape, generator=generator).where(used, IGNORED),
    }
    return {name: tensor.cuda() for name, tensor in tensors.items()}


def assert_bf16_agrees(name: str, batch: dict[str, torch.Tensor], **options: Any) -> None:
    """Cross-entropy and gradients, in both precisions."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = encoder(name, dtype)
        prediction = model(**batch, seq_len=SEQ_LEN, **options)
        prediction.loss.backward()
        gradients = {n: parameter.grad.double() for n, parameter in model.named_parameters()}
        found.append((prediction.cross_entropy.double(), gradients))
    (exact, wanted), (loss, gradients) = found
    torch.testing.assert_close(loss, exact, rtol=1e-2, atol=0)
    for parameter, gradient in gradients.items():
        off = (gradient - wanted[parameter]).norm() / wanted[parameter].norm().clamp(min=1e-9)
        assert off < 0.1, f"{parameter}: {off:.3f}"


@pytest.mark.parametrize("name", list(SHAPES))
def test_loss_and_gradients_agree_with_fp32(name):
    assert_bf16_agrees(name, stream())


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_a_mixture_agrees_with_fp32(name):
    """Two views, whose documents outside are empty in each call of varlen, and weights of predictions."""
    batch = stream()
    first = int((batch["masked_positions"] < SEQ_LEN).sum())
    groups = (RowGroup(0, View.BIDIRECTIONAL, 1, first), RowGroup(1, View.CAUSAL, 3, len(batch["labels"]) - first))
    weights = torch.rand(len(batch["labels"]), generator=torch.Generator().manual_seed(4)).cuda()
    assert_bf16_agrees(name, batch, weights=weights, groups=groups)


@pytest.mark.parametrize("name", list(SHAPES))
def test_documents_do_not_see_each_other(name):
    model, batch = encoder(name, torch.bfloat16), stream()
    arrays = batch["positions"], batch["cu_seqlens"], SEQ_LEN
    changed = batch["tokens"].clone()
    changed[356:476] = 7
    with torch.no_grad():
        before, after = model.hidden(batch["tokens"], *arrays), model.hidden(changed, *arrays)
    same = torch.ones(len(before), dtype=torch.bool, device="cuda")
    same[356:476] = False
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[~same], after[~same])


@pytest.mark.parametrize("way", ["plain", "dropout", "checkpointed", "compiled", "compiled and checkpointed"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_the_host_waits_for_nothing(name, way):
    """tests/pretrain/model/test_synchronisation.py shows on a CPU what can be shown there."""
    model, batch = encoder(name, torch.bfloat16, dropout=0.1 if way == "dropout" else 0.0), stream()
    if "checkpointed" in way:
        model.checkpoint_layers()
    if "compiled" in way:
        torch._dynamo.reset()
        model.compile_graph(shapes=1)

    def step() -> None:
        model(**batch, seq_len=SEQ_LEN).loss.backward()

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_compiled_model_agrees(name):
    torch._dynamo.reset()
    plain, compiled = encoder(name, torch.bfloat16), encoder(name, torch.bfloat16)
    compiled.compile_graph(shapes=1)
    gradients = []
    for model in (plain, compiled):
        model(**stream(), seq_len=SEQ_LEN).loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()]))
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[0].norm()


@pytest.mark.parametrize("name", list(SHAPES))
def test_one_compiled_graph_serves_any_number_of_documents(name):
    torch._dynamo.reset()
    model = encoder(name, torch.bfloat16)
    model.compile_graph(shapes=1)
    model(**stream(), seq_len=SEQ_LEN).loss.backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        for lengths in ([256] * 4, [64] * 16, [100, 156, *[16] * 16, 256, 256]):
            assert torch.isfinite(model(**stream(lengths), seq_len=SEQ_LEN).loss)


def test_checkpointing_saves_memory():
    """As tests/pretrain/model/test_checkpointing.py counts it; the same gradients, except for sums in another order."""
    shape = EncoderShape(1000, layers=12, hidden=768, heads=12, intermediate=3072, max_positions=SEQ_LEN, pad_id=0)
    peaks, gradients = [], []
    for checkpointing in (False, True):
        model = Encoder(shape)
        model.initialize(0)
        model.to("cuda", torch.bfloat16)
        if checkpointing:
            model.checkpoint_layers()
        batch = stream()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(**batch, seq_len=SEQ_LEN).loss.backward()
        weights = sum(parameter.numel() * 2 for parameter in model.parameters())
        peaks.append(torch.cuda.max_memory_allocated() - before - weights)  # without the gradients
        gradients.append(model.layers[0].qkv.weight.grad.double())
        del model
    assert peaks[1] < peaks[0] / 2
    assert (gradients[0] - gradients[1]).norm() < 0.01 * gradients[0].norm()
