"""Settings of all tests: no deadlines, Ctrl-C works in every process, and no process is left."""

import functools
import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # pytest explains its failed asserts, too

from tests.support import forked  # noqa: E402

# A shell starts background jobs with SIGINT ignored, and each process that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports and collection make a million objects that stay, which the collector would go through again and again.
gc.disable()

settings.register_profile("no deadline", deadline=None)  # the machine may be busy
settings.load_profile("no deadline")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are not part of a test's name: gzip writes the time into them, and pytest-xdist needs the same names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def _signal_handlers_are_restored() -> Iterator[None]:
    """A command that runs in this process sets handlers, and a later test would inherit them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _working_folder_is_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """A later test would start its processes in another folder. Tests that need one use `monkeypatch.chdir`."""
    yield
    assert Path.cwd() == request.config.invocation_params.dir


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail if a process that a module's tests started is still alive."""
    yield
    forked.assert_none_left()


_STARTS_PROCESSES = {
    *("subprocess", "multiprocessing"),
    *("tests.support.runs", "tests.support.ranks", "tests.support.forked", "tests.support.mlflow_server"),
    *("tests.support.triton_process", "tests.support.transformers_4"),
}


@functools.cache
def _origins(module: ModuleType) -> set[str]:
    """The modules that a module's names come from."""
    return {getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(module).values()}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules whose tests are all left out are not imported: `make test-quick` has none that start processes."""
    if "not conformance" in config.option.markexpr and collection_path.name == "conformance":
        return True
    if "not process" not in config.option.markexpr:
        return None
    if collection_path.is_dir():
        return collection_path.name in ("gpu", "system") or None
    text = collection_path.read_text(encoding="utf-8") if collection_path.suffix == ".py" else ""
    return any(f"from {helper} import" in text for helper in _STARTS_PROCESSES - {"tests.support.forked"}) or None


def pytest_collection_finish() -> None:
    """From here on, the garbage collector looks only at what tests make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder and by the helpers that their module imports; put whole runs first.

    Whole runs take longest. If they come first, workers that share the tests have work until all end together.
    """
    items.sort(key=lambda item: not item.path.is_relative_to(item.config.rootpath / "tests/system"))
    for item in items:
        path = item.path.relative_to(item.config.rootpath).as_posix()
        module = getattr(item, "module", None)
        helpers = _origins(module)
        if path.startswith("tests/gpu"):
            item.add_marker("gpu")
        if path.startswith("tests/conformance"):
            item.add_marker("conformance")
        if path.startswith("tests/system/cluster"):
            item.add_marker("slurm")
        starts_processes = not helpers.isdisjoint(_STARTS_PROCESSES) or "interpreter" in getattr(
            item, "fixturenames", ()
        )
        if path.startswith("tests/system") or starts_processes:
            item.add_marker("process")
        if "tests.support.browser" in helpers:
            item.add_marker("browser")
