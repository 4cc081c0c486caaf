"""Scores of completions, compared with the rules of BabyLM's evaluation pipeline, written again with transformers.

The pipeline (babylm/evaluation-pipeline-2025) has a backend for each kind of model. `mlm` masks a token and reads its
own slot; `mntp` masks it and reads the slot before it; `causal` masks nothing. Tokens count whose characters reach
beyond the context. Of equal scores, the first text is chosen.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from evaluation.likelihood.minimal_pairs import babylm_accuracy, credits, read_pairs
from evaluation.likelihood.predictors import open_model
from evaluation.likelihood.sentence_scores import sentence_scores
from tests.support.evaluated import corpora, save_model

BACKENDS = {"mlm": "modernbert", "mntp": "modernbert", "causal": "causal modernbert"}
LINES = [
    {"sentence_good": "The captain saw the red ship.", "sentence_bad": "The captain saw ship red the."},
    {"sentence_good": "a coin", "sentence_bad": "a coin"},
    {"Context1": "a sailor found a coin.", "Target1": "the coin is red.", "Target2": "the ship is.", "Domain": "x"},
    {"input_prefix": "the box has the", "options": [" coin", " silver ship", " it"], "numops": 1},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpora(tmp_path_factory.mktemp("corpora"))["bpe"]


@torch.no_grad()
def score(folder: Path, backend: str, text: str, context: int) -> float:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    auto = AutoModelForCausalLM if backend == "causal" else AutoModelForMaskedLM
    model = auto.from_pretrained(folder).eval()
    encoded = tokenizer(text, return_offsets_mapping=True)
    ids, total = encoded["input_ids"], 0.0
    for place, (_, end) in enumerate(encoded["offset_mapping"]):
        if end <= context:  # special tokens end at 0
            continue
        read = list(ids)
        if backend != "causal":
            read[place] = tokenizer.mask_token_id
        slot = place if backend == "mlm" else place - 1
        logits = model(input_ids=torch.tensor([read])).logits[0, slot]
        total += float(logits.double().log_softmax(0)[ids[place]])
    return total


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_and_choices_are_those_of_the_pipeline(backend: str, corpus: Path, tmp_path: Path) -> None:
    folder = save_model(BACKENDS[backend], corpus, tmp_path / "model")
    if backend == "mntp":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"prediction_lag": 1}))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    pairs = read_pairs(str(tmp_path / "pairs.jsonl"))
    contexts = [pair.context for pair in pairs for _ in pair.texts]
    sentences = [text for pair in pairs for text in pair.texts]
    ours = sentence_scores(open_model(folder), sentences, contexts=contexts)
    theirs = [[score(folder, backend, text, pair.context) for text in pair.texts] for pair in pairs]
    assert ours.tolist() == pytest.approx([value for scores in theirs for value in scores], abs=1e-4)
    right = [scores.index(max(scores)) == 0 for scores in theirs]
    assert right[1], "a tie"
    of_sets = [sum(right[:2]) / 2, float(right[2])]  # without a UID, and of EWoK; entity tracking is another split
    assert babylm_accuracy(pairs, credits(pairs, ours)) == pytest.approx((sum(of_sets) / 2 + right[3]) / 2)
