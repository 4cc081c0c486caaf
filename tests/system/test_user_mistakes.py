"""Mistakes of users: each gets one line that says what is wrong, where, and what to do.

`MISTAKES` is the list. Every line runs in a folder that `world` fills: those of the group "Commands and options" as
processes, and the others in this process, which takes a tenth of the time. More lines that cannot be parsed are in
tests/launchers/commands/test_command_line.py, more configs in tests/pretrain/config/test_config_refusals.py, and more
folders of a wrong kind in tests/data_prep/jobs/test_other_folders.py.
"""

import gzip
import shlex
import shutil
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support import runs, text_data
from tests.support.configs import PARSER_WORDS
from tests.support.in_process import command, complaints


class Mistake(NamedTuple):
    """`line` is what follows `maskwright`; the message has `wrong`, which names the mistake, and `todo`, the advice."""

    line: str
    wrong: str
    todo: str
    code: int = 1


TRAIN = "train run.yaml run.dir=new"
PREP = "prep run --tokenizer tok --out new --workers 1 --input"
TOKENIZER = "prep run --input text.jsonl --out new --workers 1 --tokenizer"
FINETUNE = "finetune model --task classification --seeds 1 --train train.tsv --valid"
SWEEP = "study sweep run.yaml run.dir=new --over"

MISTAKES = {
    "Commands and options": [
        Mistake("--help-me", "--help-me", "--help", 2),
        Mistake("tokenizer train --input text.jsonl --out new --kind sentencepiece", "--kind", "'wordpiece', 'bpe'", 2),
        Mistake("train run.yaml --resume-from s3://bucket/run", "--resume-from", "checkpoint.remote=URL", 2),
        Mistake("train --config run.yaml", "--config", "without an option: maskwright train run.yaml", 2),
    ],
    "Config files": [
        Mistake("train text.jsonl", "text.jsonl", "YAML"),
        Mistake("train other_tool.yaml", "output_dir", "run.dir"),
    ],
    "Config values": [
        Mistake(f"{TRAIN} masking.strategy=whole-word", "masking.strategy", "whole_word"),
        Mistake(f"{TRAIN} data.seq_len=1000000", "data.seq_len", "65536 or less"),
        Mistake(f"{TRAIN} train.global_batch_size=9 --procs 2", "train.global_batch_size", "processes"),
        Mistake(f"{TRAIN} --procs 16", "16 processes", "train.global_batch_size"),
        Mistake(f"{TRAIN} run.resume=s3://bucket/run", "s3://bucket/run, not a folder", "Set checkpoint.remote"),
        Mistake(f"{TRAIN} model.init=data/train", "has no config.json", "maskwright export"),
        Mistake(f"{TRAIN} run.dir=text.jsonl", "text.jsonl", "run.dir"),
        Mistake(f"{TRAIN} 'objective=[mlm, clm]'", "objective", "[{kind: mlm, share: 0.5}"),
        Mistake(
            f"{TRAIN} 'objective=[{{kind: mlm, share: 0.33}}, {{kind: clm, share: 0.67}}]'",
            "micro-batch of 8 rows",
            "train.global_batch_size",
        ),
        Mistake("branch runs/r@8 run.yaml run.dir=new model.size=small", "another shape", "Restore the settings"),
        Mistake(f"{TRAIN} run.dir=runs/r data.train=data/valid", "data.train (fingerprint) was", "another run.dir"),
        Mistake("init text.jsonl --minutes soon", "'soon'", "30, or 2h", 2),
        Mistake("init text.jsonl --name 'my model'", "'my model'", "Write my-model"),
        Mistake("init text.jsonl --name ../x", "'../x'", "Write x."),
        Mistake("init void", "folder void: it is empty", "Name files of text"),
    ],
    "Data sets": [
        Mistake(f"{TRAIN} data.train=nothing/train", "nothing/train (working directory", "maskwright prep run"),
        Mistake(f"{TRAIN} data.train=data", "data holds two data sets", "data/train"),
        Mistake(f"{TRAIN} data.train=unfinished", "is an unfinished data set folder", "Finish it"),
        Mistake(f"{TRAIN} data.train=text.jsonl", "text.jsonl", "prep run"),
        Mistake(f"{TRAIN} data.valid=foreign", "foreign was made with another tokenizer", "same --tokenizer"),
        Mistake("prep show data/train first", "N must be", "whole number", 2),
        Mistake("prep weights data/train --frequency 1 --out text.jsonl", "text.jsonl exists", "another --out"),
        Mistake("prep info text.jsonl", "text.jsonl", "prep run"),
    ],
    "Text to prepare": [
        Mistake(f"{PREP} table.csv", "table.csv: .csv", "pandas.read_csv"),
        Mistake(f"{PREP} docs", "notes.md: .md", "mv docs/notes.md docs/notes.txt"),
        Mistake(f"{PREP} empty.txt", "no document", "text"),
        Mistake(f"{PREP} zipped.txt", "zipped.txt", "add .gz to its name"),
        Mistake(f"{PREP} text.jsonl --text-field body", "body", "--text-field"),
        Mistake(f"{PREP} text.jsonl --valid-fraction 5", "--valid-fraction", "0.05", 2),
        Mistake(f"{PREP} text.jsonl --memory-gb 2", "--memory-gb is used only with", "--deduplicate"),
        Mistake(f"{PREP} text.jsonl --deduplicate exact --near-unit words", "--near-unit is used only", "near"),
        Mistake(f"{TOKENIZER} data/train", "data/train", "tokenizer"),
        Mistake(f"{TOKENIZER} tok/tokenizer_config.json", "tokenizer_config.json is not a tokenizer.", "folder"),
        Mistake(f"{PREP} data/train", "data/train, which is a data set folder", "Name files of text"),
        Mistake("prep weights data/train --out list.json --words heavy.txt", "weight above 0", "WORD, tab, WEIGHT"),
        Mistake("tokenizer train --input text.jsonl --out new --kind bpe --lowercase", "--lowercase", "Leave it out"),
        Mistake("tokenizer train --input text.jsonl --out tok", "tok exists", "another --out"),
        Mistake("tokenizer train --input empty.txt --out new", "empty.txt: no text", "--input"),
    ],
    "Runs": [
        Mistake("status runs/odd", "runs/odd/status.json", "delete it"),
        Mistake("checkpoints runs/odd", "runs/odd/config.yaml: line 1", "Close it"),
        Mistake("replay runs/r --step 1 --diff model", "model", "run"),
        Mistake("track models runs/r --register x --alias v1 --uri sqlite:///x.db", "--alias", "letters, digits"),
        Mistake("track models runs/r --register a/b --uri sqlite:///x.db", "--register is 'a/b'", "/ or :"),
        Mistake("prep show data/train -1", "-1 is read as an option", "begin at 0", 2),
        Mistake("track models runs/r --register x --step 3", "track.uri: none", "--uri"),
        Mistake("publish model --to me/x --dry-run --out card --results one.json", "no 'identity'", "--json"),
        Mistake("export runs/r --step 3", "3", "step"),
        Mistake("export runs/r --out tok", "tok", "--out"),
        Mistake("export runs/r@8", "runs/r@8", "--step 8"),
        Mistake("export runs/r --ema", "has no averaged weights", "export it without --ema"),
        Mistake("export runs/r --view causal", "objective mlm, which has no causal view", "export it without --view"),
        Mistake("branch runs/r@7 run.yaml run.dir=new", "has no checkpoint of step 7", "It has 8."),
        Mistake("branch runs/r@8 run.yaml", "the run to branch from", "Add run.dir=FOLDER"),
        Mistake("audit runs/r --steps 9:3", "--steps 9:3", "write a first and a last step from 1 to 8"),
        Mistake("publish runs/r --to tiny", "--to is 'tiny'", "OWNER/NAME"),
        Mistake("publish model --to me/x --dry-run", "--dry-run", "and --out belong together"),
        Mistake("publish model --to me/x --every-checkpoint", "model", "Remove --every-checkpoint"),
    ],
    "Models": [
        Mistake("evaluate --data data/valid", "model", "--unigram DATASET"),
        Mistake("evaluate model", "--data", "--pairs"),
        Mistake("evaluate notok --data data/valid", "notok", "tokenizer"),
        Mistake("evaluate model --data foreign", "foreign", "tokenizer"),
        Mistake("evaluate model --data data/valid --seq-len 512", "32 tokens", "--seq-len"),
        Mistake("evaluate runs --data data/valid", "a folder of runs", "runs/r"),
        Mistake("evaluate run.yaml --data data/valid", "run.yaml", "maskwright export"),
        Mistake("evaluate model --pairs table.csv", "table.csv", "jsonl"),
        Mistake("evaluate model --data data/valid --mask-rate 15", "--mask-rate", "0.15"),
        Mistake(f"{FINETUNE} none.tsv", "none.tsv", "working directory"),
        Mistake(f"{FINETUNE} odd.tsv --train odd.tsv", "'a', 'b', 'c'", "--columns"),
        Mistake("finetune model --train dev.tsv --valid dev.tsv", "'--task'", "classification, regression, tokens", 2),
        Mistake(f"{FINETUNE} dev.tsv --task tokens", "line 1 is a header", "classification"),
        Mistake(f"{FINETUNE} dev.tsv --task tokens --train bare.tsv", "a text of several words", "classification"),
        Mistake(f"{FINETUNE} dev.tsv --task tokens --train text.jsonl", "text.jsonl: ", "classification"),
        Mistake("merge model --out new", "A merge needs two models", "Name more, or RUN@A..B"),
        Mistake("merge model model --out new", "is named twice", "Name each model once"),
        Mistake("merge model notok --decay 0.5 --out new", "--decay is used only with", "--weights ema"),
    ],
    "Planning, clusters and studies": [
        Mistake("plan run.yaml --gpu h100", "'h100'", "Did you mean H100?"),
        Mistake("doctor --gpus-per-node 8", "--gpus-per-node", "Add --nodes N"),
        Mistake("doctor --cluster --full", "--full", "Remove --cluster and --nodes"),
        Mistake("doctor --cluster", "--cluster", "give --nodes N"),
        Mistake("launch prep tok", "tok", "prep run --plan-only"),
        Mistake(f"{SWEEP} masking.rate=15,30 --dry-run", "rate=15: ", "0.15"),
        Mistake(f"{SWEEP} optim.lr --dry-run", "optim.lr", "optim.lr=1e-3,3e-3"),
        Mistake(f"{SWEEP} data.train=foreign --dry-run", "train=foreign: ", "tokenizer"),
        Mistake(f"{SWEEP} optim.lr=1e-3 --pairs none --dry-run", "none", "--pairs"),
        Mistake(f"{SWEEP} optim.lr=1e-3 --stop-early --slurm", "--stop-early", "--slurm"),
        Mistake("study run runs/r --report", "runs/r", "study sweep"),
        Mistake("demo train.stpes=1 --dir new", "train.stpes", "train.steps"),
    ],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """The folder of the mistakes: text, a tokenizer, data sets, a finished run, and bad files."""
    folder = tmp_path_factory.mktemp("world")
    text_data.text_data(folder)
    other = text_data.train_tokenizer(folder / "text.jsonl", folder / "other_tok", vocab_size=120)
    runs.succeed("prep", "run", "--input", folder / "text.jsonl", "--tokenizer", other, "--out", folder / "foreign")
    settings = runs.tiny_config(Path("data"), Path("runs/r"), train__steps=8, eval__every_steps=8, track__uri="none")
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    runs.succeed("train", "run.yaml", cwd=folder)
    runs.succeed("export", "runs/r", "--out", "model", cwd=folder)
    shutil.copytree(folder / "model", folder / "notok")
    for file in folder.glob("notok/*token*"):
        file.unlink()
    for name, content in {
        "other_tool.yaml": "output_dir: out\nmodel_name_or_path: bert-base-uncased\nlearning_rate: 5e-5\n",
        "table.csv": "text,label\nhello,1\n",
        "docs/notes.md": "hello",
        "runs/odd/status.json": "{",
        "runs/odd/config.yaml": "run: {dir: x",
        "empty.txt": "",
        "train.tsv": "sentence\tlabel\ngood ship\t1\nbad ship\t0\n" * 4,
        "dev.tsv": "sentence\tlabel\ngood ship\t1\nbad ship\t0\n",
        "bare.tsv": "good ship\t1\nbad ship\t0\n",
        "odd.tsv": "a\tb\tc\n1\t2\t3\n",
        "heavy.txt": "ship 2\n",
        "one.json": '{"accuracy": 0.9}',
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / "void").mkdir()
    shutil.copytree(folder / "data" / "train", folder / "unfinished")
    (folder / "unfinished" / "manifest.json").unlink()
    (folder / "zipped.txt").write_bytes(gzip.compress(b"hello there\n"))
    return folder


def files(folder: Path) -> dict[str, int]:
    """A checksum of the content of every file, by name; without locks, which a command may leave in a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", ".lock"))
    return {str(path.relative_to(folder)): zlib.crc32(path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def untouched(world) -> dict[str, int]:
    """What `files` says before the first mistake."""
    return files(world)


@pytest.mark.parametrize(
    ("group", "mistake"),
    [(name, mistake) for name, group in MISTAKES.items() for mistake in group],
    ids=lambda value: getattr(value, "line", ""),
)
def test_a_mistake_gets_one_clear_line(group, mistake, world, untouched):
    words = shlex.split(mistake.line)
    if group == "Commands and options":
        ended = runs.maskwright(*words, cwd=world)
        code, out, err = ended.returncode, ended.stdout, ended.stderr
    else:
        code, out, err = command(*words, cwd=world)
    assert code == mistake.code, out + err
    (line,) = complaints(err)
    assert line.startswith("error: ")
    assert len(line) <= 300
    assert not PARSER_WORDS.search(line), line
    assert mistake.wrong in line
    assert mistake.todo in line
    assert "Traceback" not in out
    assert files(world) == untouched
