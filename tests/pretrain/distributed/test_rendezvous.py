"""Environment of a rank: variables of several launchers, the address of rank 0, and missing values."""

from collections.abc import Callable

import pytest

from data_prep.common.errors import UserError
from pretrain.distributed import local_processes, prepare_rendezvous


def of_openmpi(**more: str) -> dict[str, str]:
    names = {"RANK": "3", "LOCAL_RANK": "1", "SIZE": "4", "LOCAL_SIZE": "2"}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()} | more


def test_openmpis_names_are_understood() -> None:
    environment = of_openmpi(MASTER_ADDR="127.0.0.1")
    prepare_rendezvous(environment)
    values = [environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "GLOO_SOCKET_IFNAME")]
    assert values == ["3", "1", "4", "29500", "lo"]


def of_pytorchjob(**more: str) -> dict[str, str]:
    return {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PET_NPROC_PER_NODE": "1"} | more


def test_a_pod_of_kubernetes_has_one_process() -> None:
    environment = of_pytorchjob(MASTER_PORT="23456")
    prepare_rendezvous(environment)
    assert [environment[name] for name in ("RANK", "LOCAL_RANK", "MASTER_PORT")] == ["1", "0", "23456"]


def test_an_interface_that_was_chosen_is_kept() -> None:
    environment = of_openmpi(MASTER_ADDR="127.0.0.1", NCCL_SOCKET_IFNAME="ib0")
    prepare_rendezvous(environment)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("ib0", "lo")


@pytest.mark.parametrize("name", ["LOCAL_SIZE", "LOCAL_WORLD_SIZE"])
def test_processes_of_one_host_keep_to_loopback(name: str) -> None:
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", name: "2", "MASTER_ADDR": "n1.example"}
    prepare_rendezvous(environment)
    values = [environment[name] for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    assert values == ["127.0.0.1", "lo", "lo"]


@pytest.mark.parametrize(
    "environment,sentence",
    [
        (of_openmpi, "-x MASTER_ADDR=ADDRESS"),
        (dict, "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR not set"),
        (lambda: of_pytorchjob(PET_NPROC_PER_NODE="8"), "PET_NPROC_PER_NODE is 8: start .* `torchrun -m pretrain"),
    ],
)
def test_what_a_launcher_left_open_is_named(environment: Callable[[], dict[str, str]], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        prepare_rendezvous(environment())


@pytest.mark.parametrize(
    "environment,expected",
    [
        ({"LOCAL_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({}, 1),
        ({"LOCAL_SIZE": "0"}, 1),
    ],
)
def test_how_many_processes_share_a_host(environment: dict[str, str], expected: int) -> None:
    assert local_processes(environment) == expected
