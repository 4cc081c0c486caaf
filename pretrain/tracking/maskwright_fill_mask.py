"""A masked language model that MLflow loads and serves. MLflow packages hold a copy of this file.

It does not import Maskwright, so it works where only the requirements of the package are installed.
"""

from typing import Any

from mlflow.exceptions import MlflowException
from transformers import pipeline

TOP_K = 5
"""Guesses for each text if the request does not say `top_k`."""


def _load_pyfunc(path: str) -> "FillMask":
    """MLflow's entry point: `path` is the Hugging Face folder inside the package."""
    return FillMask(path)


class FillMask:
    """The likeliest tokens for the one mask of each text."""

    def __init__(self, path: str) -> None:
        self._fill: Any = pipeline("fill-mask", model=path, trust_remote_code=False)

    def predict(self, texts: Any, params: dict[str, Any] | None = None) -> list[list[dict[str, Any]]]:
        """For each text its guesses, the likeliest first: `token_str` and `score`, a probability.

        Args:
            texts: a list, or what MLflow makes of the rows of a request.
            params: `top_k`, guesses for each text.

        Raises:
            MlflowException: for a text without exactly one mask, a text that is too long, or a bad `top_k`. A server
                answers with status 400.
        """
        rows = _strings(texts)
        top_k = self._checked_top_k((params or {}).get("top_k", TOP_K))
        for number, text in enumerate(rows, 1):
            self._check(text, number)
        return [[_guess(one) for one in self._fill(text, top_k=top_k)] for text in rows]

    def _checked_top_k(self, top_k: Any) -> int:
        most = self._fill.model.config.vocab_size
        if isinstance(top_k, bool) or int(top_k) != top_k or not 1 <= top_k <= most:
            raise MlflowException.invalid_parameter_value(f"top_k is {top_k}; it must be from 1 to {most}.")
        return int(top_k)

    def _check(self, text: str, number: int) -> None:
        tokenizer = self._fill.tokenizer
        ids = tokenizer(text, verbose=False)["input_ids"]
        masks = ids.count(tokenizer.mask_token_id)
        if masks != 1:
            raise MlflowException.invalid_parameter_value(
                f"Text {number} has {masks or 'no'} {tokenizer.mask_token}; each text needs exactly one."
            )
        longest = min(tokenizer.model_max_length, getattr(self._fill.model.config, "max_position_embeddings", 10**9))
        if len(ids) > longest:
            raise MlflowException.invalid_parameter_value(
                f"Text {number} has {len(ids)} tokens; the model reads {longest}."
            )


def _strings(texts: Any) -> list[str]:
    """The texts of a list, of a pandas table with one column, or of one string."""
    if isinstance(texts, str):
        texts = [texts]
    elif hasattr(texts, "iloc"):
        texts = texts.iloc[:, 0].tolist() if texts.ndim == 2 else texts.tolist()
    rows = list(texts)
    if not all(isinstance(text, str) for text in rows):
        raise MlflowException.invalid_parameter_value("The inputs must be texts.")
    return rows


def _guess(found: dict[str, Any]) -> dict[str, Any]:
    return {"token_str": str(found["token_str"]), "score": float(found["score"])}
