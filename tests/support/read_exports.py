"""Token ids and logits of exported folders in the installed transformers.

python -m tests.support.read_exports OUT.npz FOLDER...
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

PAIR = ("the captain saw the red ship.", "my sister forgot her letter.")


def read(folder: Path, text: str) -> dict[str, np.ndarray]:
    """Ids and types of a pair of texts and of a long text, and the logits of the latter; all by name."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    masked = "MaskedLM" in (folder / "config.json").read_text()
    model = (AutoModelForMaskedLM if masked else AutoModelForCausalLM).from_pretrained(folder, dtype=torch.float32)
    pair = tokenizer(*PAIR)
    encoded = tokenizer(text, truncation=True, max_length=100, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**encoded).logits[0]
    found = {f"pair {name}": np.array(values) for name, values in pair.items()}
    settings = [tokenizer.mask_token_id, tokenizer.pad_token_id, min(tokenizer.model_max_length, 10**9)]
    return found | {"ids": encoded["input_ids"].numpy(), "logits": logits.numpy(), "settings": np.array(settings)}


def main(out: str, text: str, *folders: str) -> None:
    found = {folder: read(Path(folder), text) for folder in folders}
    np.savez(out, **{f"{folder} {name}": value for folder, values in found.items() for name, value in values.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
