"""Checks of an export in other people's tools. Each raises unless the tool gives what the reference gives.

Each has the arguments `export`, the folder to check, `wanted`, and `work`, an empty folder. Tools are imported where
they are used, so that the table can be read without them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.auto import modeling_auto

from tests.conformance.exports import TEXTS, Reference
from tests.support.mlflow_server import answer, served_model
from tests.support.text_data import OBJECTS, SUBJECTS

LABELLED = [(f"{subject} saw {thing}.", int("s" in thing)) for subject in SUBJECTS[:4] for thing in OBJECTS[:4]]
"""16 texts with labels that a word decides."""
_SHAPES = [(1, 3), (3, 17), (2, 32)]  # texts, tokens


# transformers


def fill_mask(export: Path, wanted: Reference, work: Path) -> None:
    """`pipeline("fill-mask")`, for one text and for a padded batch."""
    fill = transformers.pipeline("fill-mask", model=str(export), device="cpu")
    assert fill(wanted.masked_text)[0]["token_str"].strip() == wanted.top_token
    batch = fill([wanted.masked_text, f"{wanted.masked_text} {TEXTS[2]}"], batch_size=2)
    assert batch[0][0]["token_str"].strip() == wanted.top_token


def auto_classes(export: Path, wanted: Reference, work: Path) -> None:
    """All `AutoModelFor...` classes of the architecture: loaded, with a padded batch, saved and loaded again."""
    heads = auto_heads(export)
    assert len(heads) >= 5, heads
    encoded = AutoTokenizer.from_pretrained(export)(TEXTS, padding=True, return_tensors="pt")
    for name in heads:
        auto = getattr(transformers, name)
        model = auto.from_pretrained(export).eval()
        with torch.no_grad():
            wanted.require(wanted.states, model.base_model(**encoded)[0], encoded["attention_mask"])
            inputs = {key: value[None] if "MultipleChoice" in name else value for key, value in encoded.items()}
            outputs = model(**inputs)
            model.save_pretrained(work / name)
            again = auto.from_pretrained(work / name).eval()(**inputs)
        for key, value in outputs.items():
            assert torch.isfinite(value).all(), (name, key)
            torch.testing.assert_close(again[key], value, msg=f"{name}: {key} differs after saving and loading")


def auto_heads(export: Path) -> list[str]:
    """Names of the classes `AutoModelFor...` that have a model of the export's kind."""
    kind = type(AutoConfig.from_pretrained(export))
    names = [name for name in dir(modeling_auto) if name.startswith("AutoModelFor")]
    return [name for name in names if kind in getattr(modeling_auto, name)._model_mapping]


def trainer(export: Path, wanted: Reference, work: Path) -> None:
    """`Trainer`: fine-tune a classifier, save it and load it with `pipeline`."""
    tokenizer = AutoTokenizer.from_pretrained(export)
    transformers.set_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(export)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted.require(wanted.states, model.eval().base_model(**encoded)[0], encoded["attention_mask"])
    used = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(work / "run"), max_steps=80, learning_rate=3e-3, **_QUIET),
        train_dataset=[tokenizer(text) | {"label": label} for text, label in LABELLED],
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    before = used.evaluate(used.train_dataset)["eval_loss"]
    used.train()
    assert used.evaluate(used.train_dataset)["eval_loss"] < before - 0.1
    used.save_model(str(work / "tuned"))
    classify = transformers.pipeline("text-classification", model=str(work / "tuned"), device="cpu")
    found = [int(one["label"].removeprefix("LABEL_")) for one in classify([text for text, _ in LABELLED])]
    assert found == used.predict(used.train_dataset).predictions.argmax(1).tolist()


_QUIET: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
_QUIET |= {"per_device_train_batch_size": 8, "seed": 0}


# Libraries on top of transformers


def lora(export: Path, wanted: Reference, work: Path) -> None:
    """PEFT: train LoRA matrices and a new head, save the adapter, and load it onto the export."""
    import peft

    tokenizer = AutoTokenizer.from_pretrained(export)
    transformers.set_seed(0)
    base = AutoModelForSequenceClassification.from_pretrained(export)
    kind = base.config.model_type
    model = peft.get_peft_model(
        base,
        peft.LoraConfig(
            task_type=peft.TaskType.SEQ_CLS,
            target_modules=["Wqkv"] if kind == "modernbert" else ["query", "value"],
            modules_to_save=["pooler", "classifier"] if kind == "bert" else None,  # the pooler is new as well
        ),
    )
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted.require(wanted.states, base.eval().base_model(**encoded)[0], encoded["attention_mask"])
    texts, labels = zip(*LABELLED, strict=True)
    batch = tokenizer(list(texts), padding=True, return_tensors="pt") | {"labels": torch.tensor(labels)}
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-3)
    losses = []
    for _ in range(40):
        loss = model.train()(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05, losses
    model.save_pretrained(work / "adapter")
    transformers.set_seed(1)
    again = peft.AutoPeftModelForSequenceClassification.from_pretrained(work / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**encoded).logits, model.eval()(**encoded).logits)


def sentence_transformers(export: Path, wanted: Reference, work: Path) -> None:
    """sentence-transformers: encode with mean pooling, train, save and load."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(export), device="cpu")
    found = model.encode(TEXTS)
    np.testing.assert_allclose(found, [wanted.states(text).mean(0).numpy() for text in TEXTS], atol=1e-5)
    pairs = Dataset.from_dict({"anchor": SUBJECTS[:4], "positive": [f"{one} saw it." for one in SUBJECTS[:4]]})
    settings = Arguments(str(work / "run"), max_steps=3, learning_rate=1e-2, **_QUIET)
    SentenceTransformerTrainer(model, settings, pairs, loss=MultipleNegativesRankingLoss(model)).train()
    trained = model.encode(TEXTS)
    assert np.abs(trained - found).max() > 1e-3, "training has changed nothing"
    model.save_pretrained(str(work / "trained"))
    again = SentenceTransformer(str(work / "trained"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(again, trained, atol=1e-6)


def minicons(export: Path, wanted: Reference, work: Path) -> None:
    """minicons, with the name that transformers 5 removed: its scores are those of `maskwright evaluate`."""
    from minicons.scorer import MaskedLMScorer

    from evaluation.likelihood.predictors import open_model
    from evaluation.likelihood.sentence_scores import sentence_scores

    scorer = MaskedLMScorer(str(export), "cpu")
    scorer.tokenizer.batch_encode_plus = scorer.tokenizer
    found = scorer.sequence_score(TEXTS, reduction=lambda scores: scores.sum(0).item(), PLL_metric="original")
    np.testing.assert_allclose(found, sentence_scores(open_model(wanted.folder), TEXTS), atol=1e-3)


# Other runtimes


def torch_export(export: Path, wanted: Reference, work: Path) -> None:
    """`torch.export` with any number of texts and tokens."""
    program = _program(export)
    torch.export.save(program, work / "model.pt2")
    module = torch.export.load(work / "model.pt2").module()
    _require_logits(export, wanted, lambda inputs: module(**inputs))


def onnx(export: Path, wanted: Reference, work: Path) -> None:
    """onnxruntime with a file of `torch.onnx.export`, in fp32 and with weights in int8."""
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    torch.onnx.export(_program(export), f=work / "model.onnx", verbose=False)
    sessions = [onnxruntime.InferenceSession(work / "model.onnx", providers=["CPUExecutionProvider"])]
    _require_logits(export, wanted, lambda inputs: _answer(sessions[0], inputs))
    quantize_dynamic(work / "model.onnx", work / "int8.onnx")
    sessions.append(onnxruntime.InferenceSession(work / "int8.onnx", providers=["CPUExecutionProvider"]))
    encoded = AutoTokenizer.from_pretrained(export)(TEXTS[0], return_tensors="pt")
    full, quantized = (_answer(session, encoded).flatten() for session in sessions)
    assert not torch.equal(full, quantized)
    assert torch.corrcoef(torch.stack([full, quantized]))[0, 1] > 0.99


def _answer(session: Any, inputs: dict[str, Any]) -> torch.Tensor:
    names = [one.name for one in session.get_inputs()]
    return torch.from_numpy(session.run(None, {name: inputs[name].numpy() for name in names})[0])


class _Logits(torch.nn.Module):
    def __init__(self, export: Path) -> None:
        super().__init__()
        self.model = AutoModelForMaskedLM.from_pretrained(export, attn_implementation="sdpa").eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def _program(export: Path) -> torch.export.ExportedProgram:
    encoded = AutoTokenizer.from_pretrained(export)(TEXTS, padding=True, return_tensors="pt")
    dynamic = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=64)}  # as many as BERT has positions
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    return torch.export.export(_Logits(export), (), inputs, dynamic_shapes=dict.fromkeys(inputs, dynamic))


def _require_logits(export: Path, wanted: Reference, compute: Any) -> None:
    """Equal logits for the padded TEXTS, and for batches of other shapes."""
    encoded = AutoTokenizer.from_pretrained(export)(TEXTS, padding=True, return_tensors="pt")
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    wanted.require(wanted.logits, compute(inputs), inputs["attention_mask"])
    generator = torch.Generator().manual_seed(0)
    for shape in _SHAPES:
        ids = torch.randint(5, wanted.model.config.vocab_size, shape, generator=generator)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            torch.testing.assert_close(compute(inputs), wanted.model(**inputs).logits, atol=1e-4, rtol=0)


def mlflow_serve(export: Path, wanted: Reference, work: Path) -> None:
    """`mlflow models serve` answers a request over HTTP with the likeliest token."""
    from mlflow.entities import LoggedModel

    from pretrain.tracking.model_package import write_package

    model = LoggedModel("0", "m-0", "model", str(work / "package"), 0, 0)
    write_package(export, work / "package", model, "0", "model")
    with served_model(work / "package", work / "log") as port:
        status, found = answer(port, "invocations", {"inputs": [wanted.masked_text]})
    assert status == 200, found
    assert [one.strip() for one in found["predictions"]] == [wanted.top_token]
