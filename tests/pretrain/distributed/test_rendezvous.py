"""Environment of a rank: variables of several launchers, the address of rank 0, and missing values."""

from collections.abc import Callable

import pytest

from data_prep.errors import UserError
from pretrain.distributed import prepare_rendezvous
from pretrain.distributed.threads import local_processes


def of_openmpi(**more: str) -> dict[str, str]:
    names = {"RANK": "3", "LOCAL_RANK": "1", "SIZE": "4", "LOCAL_SIZE": "2"}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()} | more


def test_openmpis_names_are_understood() -> None:
    environment = of_openmpi(MASTER_ADDR="127.0.0.1")
    prepare_rendezvous(environment)
    found = [environment[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "GLOO_SOCKET_IFNAME")]
    assert found == ["3", "1", "4", "29500", "lo"]


def test_an_interface_that_was_chosen_is_kept() -> None:
    environment = of_openmpi(MASTER_ADDR="127.0.0.1", NCCL_SOCKET_IFNAME="ib0")
    prepare_rendezvous(environment)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("ib0", "lo")


def test_processes_of_one_host_keep_to_loopback() -> None:
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "MASTER_ADDR": "n1.example"}
    prepare_rendezvous(environment)
    found = [environment[name] for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    assert found == ["127.0.0.1", "lo", "lo"]


@pytest.mark.parametrize(
    "environment,sentence",
    [(of_openmpi, "-x MASTER_ADDR=ADDRESS"), (dict, "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR not set")],
)
def test_what_a_launcher_left_open_is_named(environment: Callable[[], dict[str, str]], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        prepare_rendezvous(environment())


@pytest.mark.parametrize(
    "environment,expected",
    [({"LOCAL_SIZE": "4"}, 4), ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2), ({}, 1), ({"LOCAL_SIZE": "0"}, 1)],
)
def test_how_many_processes_share_a_host(environment: dict[str, str], expected: int) -> None:
    assert local_processes(environment) == expected
