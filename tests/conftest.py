"""Options of the tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from lbctl.targets import KINDS
from tests.support import diagnosis
from tests.support.stores import RedisServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Background jobs of a script ignore SIGINT. Processes that tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The simulation runs as plain Python: compiling takes longer than the tests. `tests.benchmarks.simulate` compares both.
os.environ["NUMBA_DISABLE_JIT"] = "1"
# On a busy machine an example may take long to draw and to run. Every run has the same examples; `make test-all` draws
# more and new ones.
_settings = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _settings, derandomize=True)
settings.register_profile("drawn", _settings, derandomize=False, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
# The tests start hundreds of processes, each of which would compile all of lbctl anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Modules and collected tests stay until the end: looking through them for garbage is a tenth of the processor's time.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix end-to-end modules, which mostly wait, with all others, which mostly use the processor.

    The last modules are not end-to-end, so that no worker runs a long module alone at the end. The coverage of drawn
    examples is not measured: they take two and a half times as long then, and repeat lines.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.no_cover)
    modules: dict[bool, dict[Path, list[pytest.Item]]] = {True: {}, False: {}}
    for item in items:
        waits = item.get_closest_marker("e2e") is not None
        modules[waits].setdefault(item.path, []).append(item)
    places = [
        (index / len(group) * (0.8 if waits else 1.0), module)
        for waits, group in modules.items()
        for index, module in enumerate(group.values())
    ]
    items[:] = [item for _, module in sorted(places, key=itemgetter(0)) for item in module]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    diagnosis.start_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs and the fleet of the processes that a failed test used to its report."""
    report = yield
    if report.failed:
        report.sections.extend(("processes of the test", text) for text in diagnosis.texts())
    return report


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what tests/golden expects anew")


@pytest.fixture(autouse=True, scope="session")
def _options_from_the_command_line_alone() -> Iterator[None]:
    """Remove the variables that set options of lbctl from the environment.

    Those that name the programs of the proxies stay: they choose the proxies of the tests.
    """
    programs = tuple(f"LBCTL_{kind.upper()}" for kind in KINDS)
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("LBCTL_") and not name.startswith(programs)]:
            environment.delenv(name)
        yield


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of this test's own."""
    server = RedisServer()
    server.start()
    with diagnosis.diagnosed(lambda: diagnosis.tail_of(server.directory / "log")):
        yield server
    server.close()
