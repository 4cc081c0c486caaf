"""The usual way from text to tokenized shards: `datasets.map` with a fast tokenizer, then webdataset's ShardWriter.

    python -m benchmarks.usual_prep OUT TOKENIZER PROCESSES FILE...

Writes a sample for each document, with its ids as `tokens.npy`. benchmarks/prep.py measures it.
"""

import sys
from pathlib import Path

import numpy as np
import webdataset as wds
from datasets import load_dataset
from transformers import AutoTokenizer


def main(out: Path, tokenizer_path: str, processes: int, files: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
        return {"input_ids": tokenizer(batch["text"], verbose=False, **options)["input_ids"]}

    documents = load_dataset("json", data_files=files, split="train", cache_dir=str(out / "cache"))
    columns = documents.column_names
    tokenized = documents.map(tokenize, batched=True, num_proc=processes, remove_columns=columns)
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    with wds.ShardWriter(str(out / "%05d.tar"), maxsize=256 << 20, maxcount=1 << 30, verbose=0) as writer:
        for number, document in enumerate(tokenized.with_format("numpy")):
            writer.write({"__key__": f"{number:09d}", "tokens.npy": document["input_ids"].astype(dtype)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
