"""Where a run listens: training on one machine takes connections from that machine alone."""

import ipaddress

import psutil

from tests.support import runs


def listening(process: psutil.Process) -> list[str]:
    """The addresses on which a process waits for connections."""
    found = process.net_connections("inet")
    return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]


def test_training_on_one_machine_listens_on_loopback_alone(tmp_path):
    run = tmp_path / "run"
    config = runs.tiny_config(runs.tiny_data(tmp_path / "data"), run, train__steps=100_000)
    path = runs.write_config(tmp_path / "c.yaml", config)
    command = runs.start_maskwright(tmp_path / "log", "train", path, "--procs", "2")
    runs.wait_for_step(run, 2)
    processes = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
    found = [address for process in processes for address in listening(process)]
    ranks = runs.ranks_of(path)
    each = {rank: len(listening(process)) for rank, process in ranks.items()}
    (run / "STOP").touch()
    command.wait(120)
    assert each[0] > each[1] > 0, "the store of rank 0, and gloo on both"
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found
