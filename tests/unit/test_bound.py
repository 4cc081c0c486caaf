"""Cores of its own for each process of a node."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.errors import UserError
from launchers.slurm import bound
from launchers.slurm.bound import by_locality, gpu_numa_nodes, place, share

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("cpus, parts", [(8, 4), (7, 3), (3, 3), (5, 1)])
def test_shares_are_all_cores_once_and_nearly_equal(cpus: int, parts: int) -> None:
    shares = [share(range(10, 10 + cpus), part, parts) for part in range(parts)]
    assert [cpu for one in shares for cpu in one] == [*range(10, 10 + cpus)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_fewer_cores_than_processes_is_one_sentence() -> None:
    with pytest.raises(UserError, match="2 processes cannot have a core each of the 1"):
        share([0], 0, 2)


def machine(folder: Path, cpus: dict[int, tuple[int, int]]) -> Path:
    """What the kernel shows of CPUs, each in a NUMA node, with a core."""
    for cpu, (node, core) in cpus.items():
        (folder / f"cpu{cpu}" / f"node{node}").mkdir(parents=True)
        (folder / f"cpu{cpu}" / "topology").mkdir()
        (folder / f"cpu{cpu}" / "topology" / "physical_package_id").write_text(f"{node}\n")
        (folder / f"cpu{cpu}" / "topology" / "core_id").write_text(f"{core}\n")
    return folder


def test_cores_are_in_the_order_of_numa_nodes_with_threads_of_a_core_together(tmp_path: Path) -> None:
    # Two sockets whose CPUs alternate, with two threads a core: 0-3 are the first threads, 4-7 the second ones.
    system = machine(tmp_path, {cpu: (cpu % 2, cpu % 4 // 2) for cpu in range(8)})
    assert by_locality({*range(8)}, system) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert by_locality({5, 2, 0}, system) == [0, 2, 5]
    assert by_locality({3, 1}, tmp_path / "unknown") == [1, 3]


def test_processes_get_cores_near_their_gpu(tmp_path: Path) -> None:
    for name, node in {"0000:1B:00.0": 1, "0000:43:00.0": 1, "0000:9c:00.0": 0, "0000:d1:00.0": 0}.items():
        (tmp_path / "gpus" / name).mkdir(parents=True)
        (tmp_path / "devices" / name.lower()).mkdir(parents=True)
        (tmp_path / "devices" / name.lower() / "numa_node").write_text(f"{node}\n")
    nodes = gpu_numa_nodes(tmp_path / "gpus", tmp_path / "devices")
    assert nodes == [1, 1, 0, 0]
    assert [place(nodes, rank) for rank in range(4)] == [2, 3, 0, 1]
    assert gpu_numa_nodes(tmp_path / "none", tmp_path / "devices") == []


def test_the_process_keeps_to_its_share(tmp_path: Path) -> None:
    cpus = by_locality(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one core")
    program = "import os, sys; print(sorted(os.sched_getaffinity(0)), *sys.argv[1:])"
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "train.py").write_text(program)
    (tmp_path / "pretrain" / "__init__.py").touch()
    for rank in range(2):
        # The package of a folder of its own stands in for pretrain, which this test needs none of.
        result = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path.append({str(ROOT)!r}); from launchers.slurm import bound; "
                "sys.exit(bound.main(['--config', 'x']))",
            ],
            cwd=tmp_path,
            env=os.environ | {"LOCAL_RANK": str(rank), "LOCAL_SIZE": "2", "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == f"{sorted(share(cpus, rank, 2))} --config x"


def test_too_few_cores_end_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_SIZE", "2")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert bound.main([]) == 1
    assert "error: 2 processes cannot have a core each" in capsys.readouterr().err
