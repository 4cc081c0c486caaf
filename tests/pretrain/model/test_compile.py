"""The compiled encoder: the same losses, and one graph for each shape, whatever documents a stream has.

What torch.compile captures is counted here; tests/system/test_compiled.py trains with what it makes of it.
"""

import functools

import pytest
import torch
from torch._dynamo.utils import counters

from pretrain.model import Encoder
from tests.support.streams import shape_of, stream

SEQ_LEN = 16
# Lengths of the documents of five steps: many, few, one a row (which eager code takes without a mask).
STEPS = [[4, 12, 16, 7, 9], [16, 3, 3, 10, 8, 8], [16, 16, 16], [3] * 5 + [1] + [5, 11, 16], [16, 16, 8, 8]]


@pytest.fixture(autouse=True)
def _captured_alone(monkeypatch):
    """The captured graph runs without generated code, which takes minutes."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=2):
        yield
    torch._dynamo.reset()


def encoder(arch: str, layers: int) -> Encoder:
    made = Encoder(shape_of(arch, layers=layers))
    made.initialize(3)
    return made


def train(model: Encoder) -> list[float]:
    """The losses of a step each over all of STEPS."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for lengths in STEPS:
        prediction = model(**stream(lengths), seq_len=SEQ_LEN)
        optimizer.zero_grad()
        prediction.loss.backward()
        optimizer.step()
        losses.append(prediction.loss.item())
    return losses


@torch.no_grad()
def evaluate(model: Encoder) -> list[float]:
    model.eval()
    found = [model(**stream(x), seq_len=SEQ_LEN).loss.item() for x in STEPS]
    model.train()
    return found


@pytest.mark.parametrize(
    ("arch", "checkpointing"),
    [
        ("bert", False),
        ("modernbert", True),
        ("esm", False),
        ("eurobert", False),
        pytest.param("bert", True, marks=pytest.mark.slow),
        pytest.param("modernbert", False, marks=pytest.mark.slow),
    ],
)
def test_one_graph_to_train_and_one_to_evaluate(arch, checkpointing):
    layers = 2 if arch == "modernbert" else 1  # a global and a local one
    plain, compiled = encoder(arch, layers), encoder(arch, layers)
    if checkpointing:
        compiled.checkpoint_layers()
    compiled.compile_graph(shapes=1)
    first = stream(STEPS[0])
    compiled(**first, seq_len=SEQ_LEN).loss.backward()
    assert counters["stats"]["unique_graphs"] == 1
    evaluate(compiled)
    assert counters["stats"]["unique_graphs"] == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        found = train(compiled), evaluate(compiled)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    wanted = train(plain), evaluate(plain)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    assert found[1] == pytest.approx(wanted[1], rel=1e-5)


def test_each_shape_of_a_run_is_compiled_once():
    """More of them than torch would compile a function for by itself."""
    model, found = encoder("bert", layers=1), []
    stages = [[16], [8, 8, 16]]
    model.compile_graph(shapes=len(stages))
    for rows in stages:
        for lengths in (rows, [*rows[:-1], 7, 9], rows):
            model(**stream(lengths), seq_len=SEQ_LEN).loss.backward()
            with torch.no_grad():
                model(**stream(lengths), seq_len=SEQ_LEN)
        found.append(counters["stats"]["unique_graphs"])
    assert found == [2, 4]
