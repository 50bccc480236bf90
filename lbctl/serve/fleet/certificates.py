"""The certificates, keys and authorities that Envoys are sent, each as it was last good.

Certificates are rotated by other programs while this one runs, and for a moment a new certificate may stand beside an
old key. What does not fit together is never handed on: what was good before stays, and is said to. Nothing of these
files is ever shown or written anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Severity, show
from lbctl.base.diagnostics import Path as Place
from lbctl.base.errors import reason_of
from lbctl.compile.files import file_of, named_files, read_regular
from lbctl.ir.proxies import xds_proxies
from lbctl.ir.snapshot import pools_of
from lbctl.ir.topology import Topology
from lbctl.model.fleet import FleetSource
from lbctl.model.node import Node
from lbctl.targets import xds_kinds
from lbctl.xds.build.key_pairs import authority_problem, pair_problem

_LARGEST = 1 << 20
"""Bytes of one file."""
_PAIR = ("certificate", "key")
_AUTHORITIES = ("ca", "client_ca")


@dataclass(frozen=True, slots=True)
class _Group:
    """Files that are good only together: a certificate and its key, or an authority alone."""

    path: Place
    nodes: tuple[Node, ...]

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(str(node.value) for node in self.nodes)


class Pem:
    """Remembers what was good, for as long as the fleet names it."""

    def __init__(self) -> None:
        self._good: dict[tuple[str, ...], tuple[bytes, ...]] = {}

    def read(self, source: FleetSource, topology: Topology) -> tuple[dict[str, bytes], list[Diagnostic]]:
        """Path as it is written → content, for all that an Envoy of this fleet needs.

        LB931 for what cannot be used: a warning where earlier content stands in for it, else an error.
        """
        files: dict[str, bytes] = {}
        findings: list[Diagnostic] = []
        for group in _groups(source, needed(topology)):
            good = self._good.get(group.written, ())
            contents, problem = _contents(source, group)
            if not problem and contents != good:
                problem = _problem(group, contents)
            if problem:
                contents = good
                findings.append(_finding(group, problem, bool(contents)))
            if contents:
                self._good[group.written] = contents
                files |= zip(group.written, contents, strict=True)
        return files, findings

    def forget(self, source: FleetSource) -> None:
        """What this fleet does not name."""
        named = {str(node.value) for _, node in named_files(source.root)}
        self._good = {written: data for written, data in self._good.items() if named.issuperset(written)}


def needed(topology: Topology) -> frozenset[Place]:
    """Of which listeners and pools an Envoy needs the files, as the first two steps of their paths."""
    served = xds_proxies(topology, xds_kinds()).all
    carried = {name for item in served for name in item.listeners}
    every = any(not item.listeners for item in served)
    listeners = [item for item in topology.listeners if every or item.name in carried]
    routes = {rule.route for item in listeners for rule in item.rules}
    pools = {name for route in topology.routes if route.name in routes for name in pools_of(route)}
    return frozenset({("listeners", item.name) for item in listeners} | {("pools", name) for name in pools})


def _groups(source: FleetSource, needed: frozenset[Place]) -> Iterator[_Group]:
    nodes = {path: node for path, node in named_files(source.root) if path[:2] in needed}
    for path, node in nodes.items():
        key = nodes.get((*path[:-1], "key"))
        if path[-1] == "certificate" and key is not None:
            yield _Group(path, (node, key))
        elif path[-1] in _AUTHORITIES:
            yield _Group(path, (node,))


def _contents(source: FleetSource, group: _Group) -> tuple[tuple[bytes, ...], str]:
    """What the files hold, or why they cannot be read."""
    contents = []
    for node in group.nodes:
        try:
            contents.append(read_regular(file_of(source, node), _LARGEST))
        except OSError as error:
            return (), f"{show(str(node.value))} cannot be read ({reason_of(error).lower()})"
    return tuple(contents), ""


def _problem(group: _Group, contents: tuple[bytes, ...]) -> str:
    problem = pair_problem(*contents) if len(contents) == len(_PAIR) else authority_problem(contents[0])
    return problem and f"{' and '.join(map(show, group.written))}: {problem}"


def _finding(group: _Group, problem: str, kept: bool) -> Diagnostic:
    severity: Severity = "warning" if kept else "error"
    message = f"{problem}; what was good before stays in use" if kept else problem
    return Diagnostic("LB931", message, group.nodes[0].position, group.path, severity=severity)
