"""A command imports what it needs: most of the time of a small fleet is the time of imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = "examples/quickstart.yaml"
CODE = "import sys; from lbctl.cli import run; run(sys.argv[1:]); print(*sys.modules, sep='\\n', file=sys.stderr)"


def imported(*arguments: str) -> set[str]:
    """Every module that `lbctl` with these arguments has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("version",)])
def test_help_and_version_read_no_model(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert "lbctl.cli" in modules
    assert {"pydantic", "yaml", "lbctl.model", "lbctl.targets"} & modules == set()


def test_validate_loads_nothing_that_renders() -> None:
    modules = imported("validate", QUICKSTART)
    assert "lbctl.model.fleet" in modules
    renderers = {f"lbctl.targets.{kind}.render" for kind in ("nginx", "haproxy", "envoy")}
    assert ({"jinja2", "google.protobuf", "envoy"} | renderers) & modules == set()


@pytest.mark.parametrize(
    ("kind", "foreign"), [("nginx", "google.protobuf"), ("haproxy", "google.protobuf"), ("envoy", "jinja2")]
)
def test_render_loads_its_own_target_alone(kind: str, foreign: str) -> None:
    modules = imported("render", "-t", kind, QUICKSTART)
    others = {f"lbctl.targets.{other}.render" for other in ("nginx", "haproxy", "envoy") if other != kind}
    assert f"lbctl.targets.{kind}.render" in modules
    assert ({foreign} | others) & modules == set()
