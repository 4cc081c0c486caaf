"""Tokenization by datatrove: its reader of JSON lines, and its DocumentTokenizer without a shuffle.

    python -m benchmarks.datatrove_prep OUT TOKENIZER PROCESSES FILE...

Writes OUT/ids/*.ds, the ids of each file. benchmarks/prep.py measures it.
"""

import json
import sys
from pathlib import Path


def main(out: Path, tokenizer: str, processes: int, files: list[str]) -> None:
    # The tests import this module without the packages of a benchmark.
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    out.mkdir()
    values = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    values |= {"post_processor": None, "truncation": None, "padding": None}  # whole texts alone, as on the other sides
    plain = out / "tokenizer.json"
    plain.write_text(json.dumps(values))
    (folder,) = {str(Path(file).parent) for file in files}
    listed = out / "files.txt"
    listed.write_text("".join(f"{Path(file).name}\n" for file in files))
    steps = [
        JsonlReader(folder, paths_file=str(listed), compression="zstd"),
        DocumentTokenizer(str(out / "ids"), str(plain), shuffle_documents=False),
    ]
    LocalPipelineExecutor(steps, tasks=len(files), workers=processes, logging_dir=str(out / "logs")).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
