"""Reads certificates, keys, CA files and revocation lists for Envoys, and keeps the last valid contents.

Other programs rotate certificates while lbctl is running, so a new certificate may briefly be paired with an old key.
Mismatched files are never sent: the last valid contents stay in use, and a diagnostic reports the mismatch. The
contents of these files are never logged or stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Severity, show
from lbctl.base.diagnostics import Path as FieldPath
from lbctl.base.errors import reason_of
from lbctl.compile.files import file_of, named_files, read_regular
from lbctl.ir.proxies import xds_proxies
from lbctl.ir.snapshot import pools_of
from lbctl.ir.topology import Topology
from lbctl.model.fleet import FleetSource
from lbctl.model.node import Node
from lbctl.targets import xds_kinds
from lbctl.xds.build.key_pairs import authority_problem, crl_problem, pair_problem

MAX_BYTES = 1 << 20
"""Maximum size of a file in bytes."""
_PAIR = ("certificate", "key")
_SINGLE = {"ca": authority_problem, "client_ca": authority_problem, "client_crl": crl_problem}
"""Maps the key of each file that is used on its own to the function that checks it."""


@dataclass(frozen=True, slots=True)
class _FileGroup:
    """Files that are only valid together: a certificate and its key, or a single CA file or revocation list."""

    path: FieldPath
    nodes: tuple[Node, ...]

    @property
    def written(self) -> tuple[str, ...]:
        """The files' paths, as written in the fleet."""
        return tuple(str(node.value) for node in self.nodes)


class CertificateCache:
    """Reads certificate files, and remembers the last valid contents of files that the fleet names."""

    def __init__(self) -> None:
        self._valid: dict[tuple[str, ...], tuple[bytes, ...]] = {}

    def read(self, source: FleetSource, topology: Topology) -> tuple[dict[str, bytes], list[Diagnostic]]:
        """Map the path (as written in the fleet) of every file needed by one of this fleet's Envoys to its contents.

        An unusable file is reported as LB931: as a warning if its last valid contents stay in use, otherwise as an
        error.
        """
        files: dict[str, bytes] = {}
        findings: list[Diagnostic] = []
        for group in _groups(source, needed(topology)):
            last_valid = self._valid.get(group.written, ())
            contents, problem = _contents(source, group)
            if not problem and contents != last_valid:
                problem = _problem(group, contents)
            if problem:
                contents = last_valid
                findings.append(_finding(group, problem, bool(contents)))
            if contents:
                self._valid[group.written] = contents
                files |= zip(group.written, contents, strict=True)
        return files, findings

    def forget(self, source: FleetSource) -> None:
        """Drop the contents of files that this fleet does not name."""
        named = {str(node.value) for _, node in named_files(source.root)}
        self._valid = {written: data for written, data in self._valid.items() if named.issuperset(written)}


def needed(topology: Topology) -> frozenset[FieldPath]:
    """Return the listeners and pools whose files an Envoy needs, as the first two elements of each field path."""
    proxies = xds_proxies(topology, xds_kinds()).all
    named = {name for proxy in proxies for name in proxy.listeners}
    serves_all = any(not proxy.listeners for proxy in proxies)
    listeners = [item for item in topology.listeners if serves_all or item.name in named]
    routes = {rule.route for item in listeners for rule in item.rules}
    pools = {name for route in topology.routes if route.name in routes for name in pools_of(route)}
    return frozenset({("listeners", item.name) for item in listeners} | {("pools", name) for name in pools})


def _groups(source: FleetSource, needed: frozenset[FieldPath]) -> Iterator[_FileGroup]:
    nodes = {path: node for path, node in named_files(source.root) if path[:2] in needed}
    for path, node in nodes.items():
        key = nodes.get((*path[:-1], "key"))
        if path[-1] == "certificate" and key is not None:
            yield _FileGroup(path, (node, key))
        elif path[-1] in _SINGLE:
            yield _FileGroup(path, (node,))


def _contents(source: FleetSource, group: _FileGroup) -> tuple[tuple[bytes, ...], str]:
    """Return the files' contents; if a file cannot be read, return no contents and the reason."""
    contents = []
    for node in group.nodes:
        try:
            contents.append(read_regular(file_of(source, node), MAX_BYTES))
        except OSError as error:
            return (), f"{show(str(node.value))} cannot be read ({reason_of(error).lower()})"
    return tuple(contents), ""


def _problem(group: _FileGroup, contents: tuple[bytes, ...]) -> str:
    problem = pair_problem(*contents) if len(contents) == len(_PAIR) else _SINGLE[str(group.path[-1])](contents[0])
    return problem and f"{' and '.join(map(show, group.written))}: {problem}"


def _finding(group: _FileGroup, problem: str, has_last_valid: bool) -> Diagnostic:
    severity: Severity = "warning" if has_last_valid else "error"
    message = f"{problem}; the last valid certificate stays in use" if has_last_valid else problem
    return Diagnostic("LB931", message, group.nodes[0].position, group.path, severity=severity)
