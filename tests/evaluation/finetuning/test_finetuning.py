"""`maskwright finetune`: training, seeds, recorded results, and resume."""

import errno
import json
import os
import shutil
import sqlite3
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from data_prep.common.errors import UserError
from evaluation.finetuning import FinetuneResults, FinetuneSettings, Finetuning, experiment, head_training, open_task
from evaluation.finetuning.head_training import initial_model, train_head
from evaluation.finetuning.heads import IGNORED, Head, most_likely
from pretrain.export import load_model, load_tokenizer
from pretrain.model import EncoderShape
from pretrain.model.families import hugging_face_config
from tests.support.finetuning import WORDS, tiny_model, tracked_params
from tests.support.hostile_json import NESTED
from tests.support.in_process import invoke
from tests.support.prep import tree
from tests.support.runs import write_config

SETTINGS = FinetuneSettings("classification", epochs=2, lr=1e-3, batch_size=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def files(tmp_path):
    """Sentences with a label that the words "good" and "bad" decide."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 60), ("valid", 20)):
        labels = rng.integers(0, 2, count)
        rows = [f"{' '.join(rng.choice(['the', 'ship', 'old', 'red'], rng.integers(1, 9)))} {('bad', 'good')[k]}\t{k}"
                for k in labels]  # fmt: skip
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return tmp_path


LONG, SHORT = [2, 5, 6, 7, 8, 3], [2, 5, 6, 3]


def head(held_out=(SHORT,), read=most_likely):
    examples = [{"input_ids": [2, *[5 + n % 9] * (1 + n % 3), 3], "labels": n % 2} for n in range(10)]
    predicted = [{"input_ids": ids} for ids in held_out]
    return Head("", AutoModelForSequenceClassification, examples, lambda _: predicted, read, {"num_labels": 2})


def trained(model, seed=1, of=None, tokenizer=None, **settings):
    tokenizer = load_tokenizer(tokenizer or model)
    return train_head(model, of or head(), replace(SETTINGS, **settings), tokenizer, seed)


def same(a, b):
    return all(torch.equal(value, b.model.state_dict()[name]) for name, value in a.model.state_dict().items())


def test_a_seed_decides_every_bit_and_another_seed_does_not(model):
    torch.manual_seed(1)
    first = trained(model)
    torch.manual_seed(2)  # what else the process has drawn does not matter
    second = trained(model)
    assert first.losses == second.losses
    assert same(first, second)
    assert not same(first, trained(model, seed=2))


def test_weights_are_the_pretrained_ones_but_for_the_head_and_random_ones_are_not(model):
    def begun(seed, init="pretrained"):
        torch.manual_seed(seed)
        return initial_model(model, head(), replace(SETTINGS, init=init), 0).state_dict()

    first, other, random = begun(1), begun(2), begun(1, "random")
    saved = load_model(model, AutoModelForSequenceClassification, new_head=True, num_labels=2).state_dict()
    body = [name for name in saved if name.startswith("bert.e")]
    assert len(body) > 10
    assert all(torch.equal(state[name], saved[name]) for state in (first, other) for name in body)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])
    name = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(random[name], saved[name])
    assert random[name].std() == pytest.approx(0.02, rel=0.1)


def test_the_trainer_has_the_documented_recipe_and_writes_and_sends_nothing(model, tmp_path, monkeypatch):
    """AdamW with decay 0.01, warm-up over a tenth of the steps and linear decay, clipping at 1."""
    rates, trainers = [], []

    def step_end(self, args, state, control, **more):
        rates.append(more["lr_scheduler"].get_last_lr()[0])
        trainers.append((args, more["optimizer"].optimizer))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(head_training._EpochRecord, "on_step_end", step_end)
    trained(model, epochs=7)
    steps = [n / 2 if n < 2 else (21 - n) / 19 for n in range(1, 22)]  # 3 in each epoch
    assert rates == pytest.approx([SETTINGS.lr * factor for factor in steps])
    arguments, optimizer = trainers[0]
    assert type(optimizer) is torch.optim.AdamW
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert (arguments.max_grad_norm, arguments.save_strategy, arguments.report_to) == (1.0, "no", [])
    assert not os.path.exists(arguments.output_dir)
    assert [*tmp_path.iterdir()] == []


def test_padding_is_seen_by_nobody_and_outputs_are_in_the_order_of_the_examples(model):
    """Also with a tokenizer that pads on the left, and names no mask of attention."""

    def by_token(logits):
        return logits[:, :1].expand(-1, 6)

    both, alone = (trained(model, of=head(texts, lambda logits: logits)) for texts in ((LONG, SHORT), (SHORT,)))
    assert same(both, alone)
    np.testing.assert_allclose(both.outputs[1][1], alone.outputs[1][0], atol=1e-6)
    assert [len(values) for values in trained(model, of=head((LONG, SHORT), by_token)).outputs[1]] == [6, 4]
    collate = head_training._collator(tokenizer := load_tokenizer(model), {"labels": [1]})
    assert (tokenizer.padding_side, tokenizer.model_input_names[-1]) == ("right", "attention_mask")
    batch = collate([{"input_ids": ids, "labels": [IGNORED, *[1] * (len(ids) - 1)]} for ids in (LONG, SHORT)])
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 1, 0, 0]]
    assert batch["labels"][1].tolist() == [IGNORED, 1, 1, 1, IGNORED, IGNORED]


@pytest.mark.parametrize("target, said", [(IGNORED, "epoch 1: the loss is"), (1, "the predictions are")])
def test_a_loss_or_prediction_that_is_not_finite_is_a_sentence(model, monkeypatch, target, said):
    """The last step can end with weights that no loss has seen."""

    def broken(*arguments):
        made = initial_model(*arguments)
        with torch.no_grad():
            made.classifier.weight.fill_(float("inf"))
        return made

    monkeypatch.setattr(head_training, "initial_model", broken)
    of = replace(head(), held_out=lambda _: [{"input_ids": SHORT, "labels": target}])
    with pytest.raises(UserError, match=f"^seed 1.*{said} not finite; try a lower learning rate"):
        trained(model, of=of)


def test_a_missing_package_is_a_sentence_before_any_file_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(UserError, match=r"needs the package accelerate\. Run: python -m pip install accelerate"):
        open_task(SETTINGS, "no file", "no file", None)


def test_a_causal_model_sees_both_sides(model, tmp_path):
    config = json.loads((model / "config.json").read_text()) | {"is_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    for init in ("pretrained", "random"):
        made = initial_model(tmp_path, head(), replace(SETTINGS, init=init), 0).eval()
        first, second = (made.bert(torch.tensor([[2, 5, id, 3]]))[0][0, 1] for id in (6, 7))
        assert (first - second).abs().max() > 1e-4


@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_a_causal_model_whose_config_names_no_padding_learns_where_texts_end(model, tmp_path, init):
    """The class is predicted at the last token of a text, not at the last token of its batch."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(WORDS), **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    texts = [[2, *[5 + n % 9] * (1 + n % 3), 3] for n in range(10)]
    of = [head(some, lambda logits: logits) for some in (texts, texts[:1])]
    both, alone = (trained(tmp_path, of=one, tokenizer=model, init=init) for one in of)
    assert min(both.losses) > 0
    np.testing.assert_allclose(both.outputs[1][0], alone.outputs[1][0], atol=1e-5)


@pytest.mark.parametrize("init", ["pretrained", "random"])
@pytest.mark.parametrize("wanted", [None, 0.3])
def test_dropout_is_the_models_or_the_options(model, init, wanted):
    made = initial_model(model, head(), replace(SETTINGS, init=init, dropout=wanted), 0)
    rates = {module.p for name, module in made.named_modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.1 if wanted is None else wanted}
    assert made.config.attention_probs_dropout_prob == (0.1 if wanted is None else wanted)


@pytest.mark.parametrize("arch", ["modernbert", "esm"])
def test_dropout_sets_all_rates_of_a_family_and_nothing_else(tmp_path, arch):
    """The token dropout of an ESM is no rate. A ModernBERT reads the mean of a text."""
    shape = EncoderShape(len(WORDS), 1, 32, 2, 64, 32, pad_id=0, arch=arch, mask_id=4)
    AutoModelForMaskedLM.from_config(hugging_face_config(shape)).save_pretrained(tmp_path)
    made = initial_model(tmp_path, head(), replace(SETTINGS, dropout=0.3), 0)
    if arch == "esm":
        assert (made.config.hidden_dropout_prob, made.config.token_dropout) == (0.3, True)
        return
    layers = [module.p for module in made.modules() if isinstance(module, torch.nn.Dropout)]
    assert (made.config.attention_dropout, set(layers), len(layers) > 2) == (0.3, {0.3}, True)
    made.eval()
    states = made.model(text := torch.tensor([[2, 5, 6, 3]]))[0]
    torch.testing.assert_close(made(text).logits, made.classifier(made.head(states.mean(1))))


def call(model, files, *more, task="classification", code=0):
    words = ["--task", task, "--train", files / "train.tsv", "--valid", files / "valid.tsv", "--lr", "1e-2"]
    words += ["--epochs", "4", "--batch-size", "8", "--json", files / "out.json"]
    return invoke("finetune", model, *words, *more, code=code)


def test_seeds_are_trained_recorded_tracked_and_the_best_is_saved(model, files, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    uri = f"sqlite:///{files}/mlflow.db"
    write_config(files / "config.yaml", {"track": {"uri": uri}})  # for its empty database
    shown = call(model, files, "--seeds", 3, "--out", files / "best", "--uri", uri).output
    found = json.loads((files / "out.json").read_text())
    scores = found["scores"]
    assert (found["task"], found["metric"]) == ("classification", "accuracy")
    assert [one["accuracy"] for one in found["by_seed"]] == scores
    assert found["mean"] == pytest.approx(np.mean(scores))
    assert found["sd"] == pytest.approx(np.std(scores, ddof=1))
    assert max(scores) > 0.9
    assert found["baseline"]["accuracy"] == 1, "a single word decides here"
    assert f"{found['mean']:.4f}" in shown
    assert f"{found['baseline']['accuracy']:.4f}" in shown

    best = AutoModelForSequenceClassification.from_pretrained(files / "best")
    tokenizer = AutoTokenizer.from_pretrained(files / "best")
    assert best.config.id2label == {0: "0", 1: "1"}
    rows = [line.split("\t") for line in (files / "valid.tsv").read_text().splitlines()[1:]]
    encoded = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
    right = best(**encoded).logits.argmax(-1) == torch.tensor([int(label) for _, label in rows])
    assert right.float().mean() == pytest.approx(max(scores))

    database = sqlite3.connect(files / "mlflow.db")
    runs = dict(database.execute("select name, run_uuid from runs").fetchall())
    assert sorted(runs) == ["classification " + model.name, "seed 1", "seed 2", "seed 3"]
    parent = runs["classification " + model.name]
    tagged = "select run_uuid from tags where key = 'mlflow.parentRunId' and value = ?"
    assert {run for (run,) in database.execute(tagged, (parent,))} == {runs[f"seed {n}"] for n in (1, 2, 3)}
    points = "select step, value from metrics where run_uuid = ? and key = ? order by step"
    tracked = database.execute(points, (runs["seed 2"], "valid/accuracy")).fetchall()
    assert tracked == [(n + 1, epoch["metrics"]["accuracy"]) for n, epoch in enumerate(found["runs"][1]["epochs"])]
    assert database.execute(points, (parent, "accuracy/mean")).fetchall()[-1] == (3, found["mean"])
    assert tracked_params(files / "mlflow.db")["classification " + model.name]["lr"] == "0.01"


def test_a_rerun_goes_on_with_the_missing_seeds(model, files, monkeypatch):
    """Ctrl-C in the second seed leaves the first; the same command then gives what an unbroken one does."""
    trained = []
    run_seed = Finetuning.run_seed

    def counted(self, seed, on_progress):
        trained.append(seed)
        if trained == [1, 2]:
            raise KeyboardInterrupt
        return run_seed(self, seed, on_progress)

    monkeypatch.setattr(Finetuning, "run_seed", counted)
    options = ("--seeds", 2, "--uri", "none", "--epochs", "1")
    call(model, files, *options, code=130)
    record = files / "out.json"
    first = json.loads(record.read_text())
    assert (len(first["scores"]), first["sd"]) == (1, None)
    call(model, files, *options)
    assert trained == [1, 2, 2]
    broken = json.loads(record.read_text())
    record.unlink()
    call(model, files, *options)
    assert trained == [1, 2, 2, 1, 2]
    assert json.loads(record.read_text())["by_seed"] == broken["by_seed"]
    losses, again = (
        [[epoch["train_loss"] for epoch in run["epochs"]] for run in values["runs"]]
        for values in (broken, json.loads(record.read_text()))
    )
    assert losses == again
    call(model, files, *options)
    assert len(trained) == 5

    with pytest.raises(UserError, match="another batch_size; choose another --json"):
        call(model, files, *options, "--batch-size", "4")
    (files / "valid.tsv").write_text("sentence\tlabel\nthe ship good\t1\n")
    with pytest.raises(UserError, match="another valid"):
        call(model, files, *options)


def test_a_kill_while_models_are_replaced_leaves_one(model, files, monkeypatch):
    """The same command resumes after an interrupt: here in the first seed, before its result is recorded, and later."""
    options = ("--seeds", 2, "--uri", "none", "--epochs", "1", "--out", files / "best")

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("evaluation.finetuning.result_file.write_json", killed)
        with pytest.raises(Killed):
            call(model, files, *options)
    assert not (files / "out.json").exists()
    call(model, files, *options)
    kept = tree(files / "best")
    (files / "best").rename(files / ".best.before")  # killed between this and the next model's taking its place
    call(model, files, *options)
    assert tree(files / "best") == kept
    (files / "out.json").unlink()
    with pytest.raises(UserError, match="best exists and is not an empty folder"):
        call(model, files, *options, "--lr", "1e-3")


def test_a_full_disk_is_a_sentence_and_leaves_the_model_of_the_seed_before(model, files, monkeypatch):
    options = ("--uri", "none", "--epochs", "1", "--out", files / "best")
    call(model, files, *options, "--seeds", 1)
    kept = tree(files / "best")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(experiment, "write_json", full)
    monkeypatch.setattr(FinetuneResults, "values", lambda *_: [-1.0])  # so that the second seed is better
    with pytest.raises(UserError, match="best: the model cannot be written"):
        call(model, files, *options, "--seeds", 2)
    assert tree(files / "best") == kept
    assert not list(files.glob(".best*"))


def test_what_mlflow_missed_is_sent_by_the_same_command_without_training(model, files, monkeypatch, caplog):
    """After a warning. Its parameters are the names of model and files, without what opens them."""
    options = ("--seeds", 1, "--epochs", "1", "--limit", 8)
    call(model, files, *options, "--uri", "http://127.0.0.1:9")
    assert len(json.loads((files / "out.json").read_text())["scores"]) == 1
    assert "did not take the results" in caplog.text
    monkeypatch.setattr(Finetuning, "run_seed", lambda *_: pytest.fail("all seeds are there"))
    write_config(files / "config.yaml", {"track": {"uri": f"sqlite:///{files}/mlflow.db"}})  # for its empty database
    train = f"file://{files}/train.tsv?token=abc"
    (files / "train.tsv?token=abc").write_bytes((files / "train.tsv").read_bytes())
    call(model, files, *options, "--uri", f"sqlite:///{files}/mlflow.db", "--train", train)
    tracked = tracked_params(files / "mlflow.db")
    assert sorted(tracked) == ["classification " + model.name, "seed 1"]
    files_of = {"model": str(model), "valid": f"{files}/valid.tsv", "train": f"file://{files}/train.tsv"}
    assert tracked["seed 1"].items() >= files_of.items()


def test_what_is_in_use_or_could_not_be_written_is_refused_before_training(model, files, monkeypatch):
    monkeypatch.setattr(Finetuning, "run_seed", lambda *_: pytest.fail("trained"))
    (files / "best").mkdir()
    (files / "best" / "note").write_text("mine")
    (files / "mine.json").write_text("{}")
    (files / "nested.json").write_text(NESTED)
    for option, path, said in (
        ("--json", "/proc/out.json", r"Cannot write to /proc/out\.json: .*another --json"),
        ("--out", "/proc/a/best", r"Cannot write to /proc/a/best: "),
        ("--out", files / "best", "best exists and is not an empty folder"),
        *(("--json", files / name, "is no report of a fine-tuning") for name in ("", "mine.json", "nested.json")),
    ):
        with pytest.raises(UserError, match=said):
            call(model, files, "--uri", "none", option, path)
    assert (files / "mine.json").read_text() == "{}"


@pytest.mark.parametrize("task, change, said", [
    ("repair", {"mask_token": None}, r"repair takes a masked language model, whose tokenizer has \[MASK\]"),
    ("repair", {"post_processor": None}, "repair takes a masked language model"),
    ("classification", {"post_processor": None}, r"valid\.tsv, line 22: the text is empty"),
    ("classification", {"pre_tokenizer": None}, r"its tokenizer has an id of \d+, and its model knows those below \d+"),
])  # fmt: skip
def test_a_tokenizer_that_a_task_cannot_do_with_is_refused(model, files, tmp_path, task, change, said):
    """As GPT-2's, which has no special tokens but the end of a text, and puts nothing around a text."""
    folder = shutil.copytree(model, tmp_path / "gpt")
    if "pre_tokenizer" in change:  # a token that was added to the tokenizer alone
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["the ship"])
        tokenizer.save_pretrained(folder)
    else:
        path = folder / ("tokenizer.json" if "post_processor" in change else "tokenizer_config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with open(files / "valid.tsv", "a") as rows:
        rows.write("\t1\n")
    with pytest.raises(UserError, match=said):
        call(folder, files, "--columns", "1,2", "--uri", "none", task=task)
