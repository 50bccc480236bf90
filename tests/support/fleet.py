"""Fleets for unit tests, read and compiled from text in this process."""

from __future__ import annotations

import io
from collections.abc import Mapping

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.fleet import Compiled, compile_fleet
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Route
from lbctl.model.fleet import FleetSource, read
from lbctl.targets.load import proxy_kinds

OLDEST: Mapping[str, tuple[int, ...]] = {"nginx": (1, 22), "haproxy": (2, 6), "envoy": (1, 40)}


def reading(text: str) -> tuple[FleetSource | None, list[Diagnostic]]:
    """Return the source that the model reads from `text`, under the file name `-`, or None if it has errors; and the
    diagnostics."""
    diagnostics = Diagnostics()
    source = read(["-"], diagnostics, io.BytesIO(text.encode()))
    return None if diagnostics.failed else source, list(diagnostics)


def compiling(text: str) -> tuple[Compiled | None, list[Diagnostic]]:
    """Return the compiled `text`, or None if it has errors; and the diagnostics."""
    diagnostics = Diagnostics()
    source = read(["-"], diagnostics, io.BytesIO(text.encode()))
    compiled = compile_fleet(source, proxy_kinds(), diagnostics) if source else None
    return compiled, list(diagnostics)


def compiled(text: str) -> Compiled:
    """Return the compiled form of a fleet that must have no errors."""
    result, diagnostics = compiling(text)
    assert result is not None, diagnostics
    return result


def places(diagnostics: list[Diagnostic]) -> list[str]:
    """Return `line:column code` of each diagnostic."""
    return [f"{item.position.line}:{item.position.column} {item.code}" for item in diagnostics if item.position]


def marked(text: str) -> tuple[str, str]:
    """Return the text without its one mark `▶`, and `line:column` of the mark."""
    before, after = text.split("▶")
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def pool_of(text: str, name: str = "p") -> Pool:
    """Return the pool of a fleet whose pool has this text as its body."""
    fleet = compiled(f"version: 1\npools:\n  {name}: {text}\n")
    return next(item for item in fleet.topology.pools if item.name == name)


def route_of(text: str) -> Route:
    """Return the route `r` of a fleet with the pools a and b. The route has this text as its body."""
    fleet = compiled(f"{GROUND}routes:\n  r: {text}\n")
    return next(item for item in fleet.topology.routes if item.name == "r")


GROUND = """\
version: 1
listeners: {l: {bind: "127.0.0.1:80"}}
pools:
  a: {replicas: [{address: "10.0.0.1:80"}]}
  b: {replicas: [{address: "10.0.0.2:80"}]}
"""
