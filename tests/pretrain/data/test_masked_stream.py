"""MaskedStream: the batches of the trainer for other trainers, over processes, workers and resumes."""

import itertools
import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from transformers import BertConfig, ModernBertConfig, RobertaConfig

from data_prep.common.errors import UserError
from data_prep.format import WeightList
from pretrain.config_files import load_config
from pretrain.data import BatchStage, Loader, MaskedStream, MixturePosition, Sources
from pretrain.masking import cached_weights
from tests.pretrain.data.test_source_order import named_set
from tests.support import runs
from tests.support.datasets import make_dataset

MODELS = {
    "BertForMaskedLM": (BertConfig, {}, {}),
    "RobertaForMaskedLM": (RobertaConfig, {"pad_token_id": 0, "max_position_embeddings": 50}, {"first_position": 1}),
    "ModernBertForMaskedLM": (ModernBertConfig, {"local_attention": 8, "pad_token_id": 0}, {"local_attention": 8}),
}


def stream(data, batch_size=4, **settings) -> MaskedStream:
    return MaskedStream(str(data / "train"), batch_size, 32, **settings)


def first(batches, number):
    return list(itertools.islice(iter(batches), number))


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)  # the same batches


@pytest.mark.parametrize("rows", ["packed", "padded"])
def test_the_batches_are_those_of_the_trainer(data, rows):
    packing = "none" if rows == "padded" else "best_fit"
    settings = ["run.dir=.", "run.seed=5", f"data.train={data}/train", "data.seq_len=32", f"data.packing={packing}"]
    settings += ["masking.rate=0.3", "masking.replacement={mask: 0.5}", "train={steps: 9, global_batch_size: 4}"]
    config = load_config(None, settings)
    loader = Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), 0)
    own = stream(data, rows=rows, seed=5, masking={"rate": 0.3, "replacement": {"mask": 0.5}})
    position = MixturePosition(0, ()).of_sources(1)
    for number, given in enumerate(first(own, 9)):
        step = loader.step(number, position)
        (batch,), position = step.batches, step.after
        width = given["input_ids"].shape[1]
        tokens, labels = batch.tokens.reshape(4, 32), np.full(4 * 32, -100)
        labels[batch.masked_positions[batch.labels >= 0]] = batch.labels[batch.labels >= 0]
        assert np.array_equal(given["input_ids"], tokens[:, :width])
        assert np.array_equal(given["labels"], labels.reshape(4, 32)[:, :width])
        assert (tokens[:, width:] == 0).all()
        if rows == "padded":
            assert np.array_equal(given["attention_mask"], (tokens != 0)[:, :width])
            assert given["attention_mask"].sum(1).max() == width
    loader.close()


def test_the_end_of_a_text_is_seen_where_it_equals_padding(tmp_path):
    make_dataset(tmp_path / "train", [range(5, 5 + n) for n in (3, 9, 20)] * 4, special_ids={"pad": 3})
    for batch in first(MaskedStream(str(tmp_path / "train"), batch_size=4, seq_len=32, rows="padded"), 3):
        tokens, seen = batch["input_ids"], batch["attention_mask"].sum(1)
        assert (tokens[torch.arange(4), seen - 1] == 3).all()
        assert sorted({*seen.tolist()} - {5, 11, 22}) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_each_batch_once_in_order(data, workers):
    whole = first(stream(data), 11)
    loader = stream(data, steps=11).loader(workers)
    given = []
    for batch in loader:
        given.append(batch)
        if len(given) == 5:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["batches"] == 5
    resumed = stream(data, steps=11).loader(workers)
    resumed.load_state_dict(state)
    assert_equal(whole, given + list(resumed))


def test_processes_share_the_rows_of_one_stream(data):
    whole = first(stream(data, 4), 5)
    shares = [first(stream(data, 2, rank=rank, world_size=2), 5) for rank in (0, 1)]
    pairs = zip(*shares, strict=True)
    assert_equal(whole, [{name: torch.cat([one[name], other[name]]) for name in one} for one, other in pairs])
    pair = stream(data, 2, rank=0, world_size=2)
    first(pair, 3)
    alone = stream(data, 4)
    alone.load_state_dict(json.loads(json.dumps(pair.state_dict())))
    assert_equal(whole[3:], first(alone, 2))


def test_it_goes_on_after_the_last_batch_and_from_any_number(data):
    whole = first(stream(data), 120)  # over several epochs
    own = stream(data)
    assert_equal(whole, first(own, 50) + first(own, 70))
    for number in (0, 1, 77, 40):
        own.seek(number)
        assert_equal(whole[number : number + 3], first(own, 3))
        assert own.batches == number + 3


def test_masks_differ_between_epochs_and_the_length_is_known(data):
    own = stream(data, steps=6)
    assert len(own) == 6
    assert len(first(own, 100)) == 6
    assert first(own, 1) == []
    with pytest.raises(TypeError):
        len(stream(data))
    rates = [
        float((batch["labels"] >= 0).float().mean())
        for batch in stream(data, 16, steps=9, masking={"rate": {"schedule": "linear", "start": 0.5, "end": 0.1}})
    ]
    assert rates[0] > 0.4
    assert rates[-1] < 0.15


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_document_is_predicted_as_alone(data, name):
    import transformers

    kind, settings, options = MODELS[name]
    config = kind(
        **{"vocab_size": runs.VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
        | {"intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        | settings
    )
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    (batch,) = first(stream(data, **options), 1)
    with torch.no_grad():
        packed = model(**batch).logits
        assert float(model(**batch).loss) > 0
        starts = [*(batch["position_ids"] == options.get("first_position", 0)).nonzero().tolist(), None]
        compared = 0
        for (row, begin), after in itertools.pairwise(starts):
            end = after[1] if after and after[0] == row else 32
            ids = batch["input_ids"][row : row + 1, begin:end]
            if (ids == 0).all():
                continue
            alone = model(input_ids=ids).logits[0]
            torch.testing.assert_close(packed[row, begin:end], alone, rtol=1e-4, atol=1e-5)
            compared += 1
    assert compared > 4


def test_what_cannot_work_is_refused(data):
    with pytest.raises(UserError, match=r"masking\.rate follows a schedule.*give steps"):
        stream(data, masking={"rate": {"schedule": "linear", "start": 0.3, "end": 0.1}})
    with pytest.raises(UserError, match=r"masking\.ratio"):
        stream(data, masking={"ratio": 0.3})
    with pytest.raises(UserError, match="persistent_workers"):
        stream(data).loader(1, persistent_workers=True)
    state = stream(data).state_dict()
    with pytest.raises(UserError, match="seed was 0 and is 1"):
        stream(data, seed=1).load_state_dict(state)
    with pytest.raises(UserError, match="not the state"):
        stream(data).load_state_dict({"batches": 3})
    with pytest.raises(UserError, match=r"rank is 1, but 1 processes have 0 to 0"):
        stream(data, rank=1)


def test_a_state_of_other_shares_is_refused(data, tmp_path):
    def mixed(first, second, path=tmp_path / "ships \U0001f6a2"):
        return MaskedStream([{"path": str(data / "train"), "weight": first}, {"path": str(path), "weight": second}], 4)

    shutil.copytree(data / "train", tmp_path / "ships \U0001f6a2")
    state = json.loads(json.dumps(mixed(3, 1).state_dict()))
    mixed(6, 2).load_state_dict(state)
    with pytest.raises(UserError, match=r"shares was \[3072, 1024\] and is \[1024, 3072\]"):
        mixed(1, 3).load_state_dict(state)
    words, spans = ({"strategy": dict.fromkeys(names, 1)} for names in (("token", "span"), ("span", "token")))
    state = stream(data, masking=words).state_dict()
    with pytest.raises(UserError, match="strategies was"):
        stream(data, masking=spans).load_state_dict(state)
    path, states = tmp_path / "weights.json", []
    for weight in (1.0, 2.0):
        WeightList("0" * 64, [weight] * runs.VOCAB_SIZE).write(path)
        own = stream(data, masking={"selection": {"weights": str(path)}})
        states.append(own.state_dict())
    with pytest.raises(UserError, match="weights was"):
        own.load_state_dict(states[0])
    WeightList("0" * 64, [3.0] * runs.VOCAB_SIZE).write(path)
    cached_weights.cache_clear()  # as in another process
    with pytest.raises(UserError, match="weights have changed since this stream was made"):
        first(own, 1)
    sources = named_set(tmp_path / "named", {"en": 9, "de": 5}).path
    by_source = {n: MaskedStream([{"path": str(sources), "sources": {"en": n, "de": 1}}], 4, 32) for n in (1, 2)}
    for other in (by_source[2], MaskedStream(sources, 4, 32)):
        with pytest.raises(UserError, match="sources 0 was"):
            other.load_state_dict(by_source[1].state_dict())


def test_data_that_change_after_the_stream_was_made_are_refused(tmp_path):
    make_dataset(tmp_path / "train", [[5, 6, 7]] * 9)
    own = MaskedStream(tmp_path / "train", 4, 32)
    first(own, 2)
    shutil.rmtree(tmp_path / "train")
    make_dataset(tmp_path / "train", [[5, 6, 7]] * 10)
    with pytest.raises(UserError, match="the data or weights have changed since"):
        first(own, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"batches": -1},
        {"batches": "3"},
        {"batches": 2},
        {"settings": []},
        {"position": {"dealt": 12, "sources": []}},
        {"position": {"dealt": 12, "sources": [{"epoch": 0, "window": 99}]}},
        {"position": {"dealt": 12, "sources": [{"epoch": 0, "row": 1 << 40}]}},
    ],
)
def test_a_state_with_wrong_values_is_refused(data, change):
    made, resumed = stream(data, steps=4), stream(data, steps=4)
    first(made, 3)
    state = made.state_dict()

    def resume():
        resumed.load_state_dict(state | change)
        first(resumed, 1)

    with pytest.raises(UserError, match=r"not the state of a MaskedStream|the position is not one of these data"):
        resume()
    with pytest.raises(UserError, match="after 3 batches, and the stream has 2"):
        stream(data, steps=2).load_state_dict(state)
