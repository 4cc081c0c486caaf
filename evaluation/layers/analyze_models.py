"""Layer measures of several models on the same held-out positions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.errors import UserError
from data_prep.format import Dataset
from evaluation.layers.layer_analysis import LayerMeasures, analyze
from evaluation.layers.position_sample import SampleSettings, causal_sample, held_out_rows, masked_sample
from pretrain.export import check_vocabulary, load_language_model, load_tokenizer, model_folder
from pretrain.masking import Vocabulary
from pretrain.model import longest_text

_USUAL_LENGTH = 128  # slots of a row, unless a model accepts fewer


@dataclass(frozen=True)
class ModelMeasures:
    """Measures of one model on one text. objective: "mlm" or "clm". text: "natural", or the kind of shuffling."""

    model: str
    objective: str
    text: str
    found: LayerMeasures


def measure(
    names: Sequence[str], dataset: Dataset, settings: SampleSettings, seq_len: int | None
) -> tuple[SampleSettings, Iterator[ModelMeasures]]:
    """Return the final settings, and an iterator that measures each model on natural and, if set, shuffled text.

    Args:
        names: Hugging Face folders or runs.
        seq_len: slots of a row; default: 128, or the shortest limit of the models.

    Raises:
        UserError: before any measurement, if a folder is not a language model, a tokenizer differs from the data
            set's, or seq_len exceeds a model's limit.
    """
    folders = {name: model_folder(Path(name)) for name in names}
    limits = {}
    for name, folder in folders.items():
        check_vocabulary(name, load_tokenizer(folder).get_vocab(), dataset)
        limits[name] = longest_text(load_language_model(folder)[0])
    shortest = min((limit for limit in limits.values() if limit), default=_USUAL_LENGTH)
    for name, limit in limits.items():
        if seq_len and limit and seq_len > limit:
            raise UserError(f"{name} takes texts of {limit} tokens at most; choose a smaller --seq-len")
    settings = replace(settings, seq_len=seq_len or min(_USUAL_LENGTH, shortest))
    return settings, _measure(folders, dataset, settings)


def _measure(folders: dict[str, Path], dataset: Dataset, settings: SampleSettings) -> Iterator[ModelMeasures]:
    vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
    rows = {}
    for n in dict.fromkeys((0, settings.shuffled_ngrams)):
        rows[_text(n)] = held_out_rows(dataset, replace(settings, shuffled_ngrams=n), vocabulary)
    for name, folder in folders.items():
        model, causal = load_language_model(folder)
        for text, read in rows.items():
            sample = (causal_sample if causal else masked_sample)(read, vocabulary, settings)
            try:
                found = analyze(model, sample, vocabulary.pad, settings)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
            yield ModelMeasures(name, "clm" if causal else "mlm", text, found)


def _text(n: int) -> str:
    if not n:
        return "natural"
    return "shuffled words" if n == 1 else f"shuffled {n}-grams"
