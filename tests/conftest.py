"""Settings of all tests: no deadlines, Ctrl-C works in every process, and no process is left."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # what its asserts compared is told, too

from tests.support import forked  # noqa: E402

# A shell starts background jobs with SIGINT ignored, and each process that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("no deadline", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def _signal_handlers_are_restored() -> Iterator[None]:
    """A command that runs in this process sets handlers, and a later test would inherit them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Nothing that a module's tests started outlives them."""
    yield
    forked.assert_none_left()


_STARTS_PROCESSES = ("tests.support.runs", "tests.support.ranks", "tests.support.forked", "tests.support.mlflow_server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder and by the helpers that their module imports."""
    for item in items:
        path = item.path.relative_to(item.config.rootpath).as_posix()
        module = getattr(item, "module", None)
        helpers = {
            getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module).values()
        }
        if path.startswith("tests/gpu"):
            item.add_marker("gpu")
        if path.startswith("tests/system/cluster"):
            item.add_marker("slurm")
        if path.startswith("tests/system") or not helpers.isdisjoint(_STARTS_PROCESSES):
            item.add_marker("process")
        if "tests.support.browser" in helpers:
            item.add_marker("browser")
