"""Preparations killed at any time: a rerun gives the bytes of an undisturbed run, and no process remains."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data_prep.common.errors import UserError
from data_prep.common.files import file_lock
from data_prep.jobs import PreparationSettings, plan_inputs
from data_prep.tokenizer import train_tokenizer
from tests.support.forked import ROOT
from tests.support.kills import killed_copies
from tests.support.prep import jsonl, prepare_files, texts, tree

SCRIPT = """
import sys
from pathlib import Path
from data_prep.jobs import PreparationSettings
from tests.support.prep import prepare_files
if __name__ == "__main__":
    corpus, out = map(Path, sys.argv[1:3])
    settings = PreparationSettings(block_tokens=4000, shard_bytes=20_000, valid_fraction=0.1)
    prepare_files(sorted(corpus.glob("*.jsonl")), corpus / "tok", out, 2, settings, task_bytes=int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(4):
        rows = jsonl(texts(number, 1500)) + b"{broken\n"
        (folder / f"{number}.jsonl").write_bytes(rows)
    train_tokenizer(texts(0, 300), "bpe", 320, folder / "tok")
    (folder / "script.py").write_text(SCRIPT)
    run(folder, folder / "reference")
    return folder


def start(corpus: Path, out: Path, task_bytes: int = 100_000) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(corpus / "script.py"), str(corpus), str(out), str(task_bytes)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)


def run(corpus: Path, out: Path) -> None:
    """The same preparation in this process."""
    settings = PreparationSettings(block_tokens=4000, shard_bytes=20_000, valid_fraction=0.1)
    prepare_files(sorted(corpus.glob("*.jsonl")), corpus / "tok", out, 1, settings, task_bytes=100_000)


def workers(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


def wait_for_files(out: Path, count: int, process: subprocess.Popen) -> bool:
    """Wait until OUT holds that many files; False if the process ended before."""
    while process.poll() is None:
        if sum(path.is_file() for path in out.rglob("*")) >= count:
            return True
        time.sleep(0.001)
    return False


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


@pytest.mark.parametrize("killed", ["worker", "command"])
def test_a_kill_leaves_no_process_and_a_rerun_gives_identical_bytes(corpus, tmp_path, killed):
    out = tmp_path / "out"
    process = start(corpus, out)
    assert wait_for_files(out, 12, process)
    children = workers(process)
    (children[0] if killed == "worker" else process).kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert killed == "command" or "UserError: A worker process was killed" in errors
    assert_gone(children)
    run(corpus, out)
    assert tree(out) == tree(corpus / "reference")


def test_interrupt_stops_in_the_middle_of_a_task(corpus, tmp_path):
    long = tmp_path / "corpus"
    long.mkdir()
    (long / "tok").symlink_to(corpus / "tok")
    (long / "script.py").write_text(SCRIPT)
    (long / "0.jsonl").write_bytes((corpus / "0.jsonl").read_bytes() * 150)  # half a minute of work
    process = start(long, tmp_path / "out", task_bytes=10**9)
    assert wait_for_files(tmp_path / "out", 12, process)
    children = workers(process)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=12)
    assert process.returncode != 0
    assert_gone(children)
    assert not list((tmp_path / "out" / "prep" / "tasks").iterdir())
    assert not list((tmp_path / "out").rglob(".*.tmp"))


def test_a_folder_that_another_process_prepares_is_refused(corpus, tmp_path):
    (tmp_path / "prep").mkdir()
    with file_lock(tmp_path / "prep/lock"), pytest.raises(UserError, match="Another process is preparing"):
        run(corpus, tmp_path)


def test_full_disk_is_one_sentence_and_leaves_nothing_partial(corpus, tmp_path):
    resource = pytest.importorskip("resource")
    out = tmp_path / "out"
    settings = PreparationSettings(block_tokens=1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(Exception, match=r"failed: file too large.*run the same command again"):
            prepare_files([corpus / "0.jsonl"], corpus / "tok", out, 1, settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert list((out / "shards").iterdir()) == []
    prepare_files([corpus / "0.jsonl"], corpus / "tok", out, 1, settings)


def die_before_each_change(folder: Path) -> None:
    """With near duplicates, an evaluation set and a held-out part: all kinds of files that a preparation writes."""
    settings = PreparationSettings(valid_fraction=0.2, deduplicate="near")
    rows = [*texts(0, 24), *texts(0, 8), "{broken"]
    (folder / "a.jsonl").write_bytes(jsonl(rows) + b"{broken\n")
    (folder / "eval.txt").write_text("\n".join(texts(3, 5)))
    train_tokenizer(texts(0, 24), "wordpiece", 120, folder / "tok")

    def work(out: Path) -> None:
        prepare_files([folder / "a.jsonl"], folder / "tok", out, 1, settings, evaluation=[folder / "eval.txt"])

    work(folder / "undisturbed")
    (folder / "out").mkdir()
    expected, deaths = tree(folder / "undisturbed"), 0
    for out, killed_at in killed_copies(folder / "out", work):
        work(out)
        assert tree(out) == expected, f"killed at {killed_at}"
        deaths += 1
    assert deaths > 40


def test_a_death_before_any_change_costs_nothing(tmp_path):
    """In a small process, which forks much faster than one that has imported all that tests need."""
    program = [sys.executable, "-m", "tests.system.faults.test_prep_kill", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    plan_inputs.RANGE_BYTES = 3000  # several ranges of a small corpus
    os.fsync = lambda descriptor: None  # it takes most of the time, and matters only where the machine dies
    die_before_each_change(Path(sys.argv[1]))
