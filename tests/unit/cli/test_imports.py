"""A command imports only the modules that it needs: with a small fleet, imports take most of the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

QUICKSTART = "examples/quickstart.yaml"
RULES = {"lbctl.lint.rules", "lbctl.lint.pages"}
CODE = "import sys; from lbctl.cli import run; run(sys.argv[1:]); print(*sys.modules, sep='\\n', file=sys.stderr)"


def imported(*arguments: str) -> set[str]:
    """Return every module that `lbctl` with these arguments has imported when it ends."""
    process = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return set(process.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("version",), ("picker", "--help"), ("agent", "--help")])
def test_command_without_fleet_does_not_import_the_model(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert "lbctl.cli" in modules
    assert {"pydantic", "yaml", "lbctl.model", "lbctl.targets", "lbctl.lint.rules"} & modules == set()


@pytest.mark.slow
def test_validate_imports_no_renderer() -> None:
    modules = imported("validate", QUICKSTART)
    assert "lbctl.model.fleet" in modules
    renderers = {f"lbctl.targets.{kind}.render" for kind in ("nginx", "haproxy", "envoy")}
    checkers = {"lbctl.targets.envoy.check", "lbctl.signals.source", "lbctl.signals.exposition", "difflib"}
    assert ({"jinja2", "google.protobuf", "envoy", "aiohttp"} | RULES | renderers | checkers) & modules == set()


@pytest.mark.slow
def test_lint_imports_the_rules_but_no_renderer() -> None:
    modules = imported("lint", QUICKSTART)
    assert "lbctl.lint.rules" in modules
    assert {"jinja2", "google.protobuf"} & modules == set()


def test_commands_do_not_search_installed_packages() -> None:
    """pydantic searches them for plugins unless an environment variable turns that off."""
    replaced = "importlib.metadata.distributions = lambda **_: sys.exit('searched')"
    code = f"import importlib.metadata, sys; from lbctl.cli import main; {replaced}; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "validate", QUICKSTART], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("kind", "foreign"), [("nginx", "google.protobuf"), ("haproxy", "google.protobuf"), ("envoy", "jinja2")]
)
@pytest.mark.slow
def test_render_imports_only_its_target(kind: str, foreign: str) -> None:
    modules = imported("render", "-t", kind, QUICKSTART)
    others = {f"lbctl.targets.{other}.render" for other in ("nginx", "haproxy", "envoy") if other != kind}
    assert f"lbctl.targets.{kind}.render" in modules
    assert ({foreign, "aiohttp", "lbctl.signals.source"} | others) & modules == set()


def test_garbage_is_frozen_before_python_ends() -> None:
    shown = "atexit.register(lambda: print(gc.get_freeze_count()))"
    code = f"import atexit, gc; from lbctl.cli import main; {shown}; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "version"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout.splitlines()[-1]) > 10_000
