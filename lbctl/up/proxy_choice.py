"""Chooses the proxy that `up` runs: the installed proxy that supports most of the fleet's features.

Features that `lbctl serve` provides instead of the proxy are not counted as losses, because `up` also runs `serve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lbctl.apply.binaries import find_binary
from lbctl.apply.check import MissingBinaryError, version_of
from lbctl.base.diagnostics import Diagnostic
from lbctl.compile.proxies import version_text
from lbctl.ir.proxies import unnamed
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.serve.fleet.unsupported import done_by_control_plane_for
from lbctl.targets import target
from lbctl.targets.assess import Assessment, assess
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded
from lbctl.up.launchers import LAUNCHERS
from lbctl.up.prepare import Program

UNSUITABLE = "LB971"
_PROTECTING = frozenset(feature.code for feature in FEATURES if feature.protects)


class NoProxyError(Exception):
    """This machine has no proxy that `up` can run. The message lists the commands to install one."""


@dataclass(frozen=True, slots=True)
class ProxyChoice:
    """The outcome of the choice."""

    program: Program | None
    """None if no proxy can serve the fleet. The reason is in `diagnostics`."""
    diagnostics: tuple[Diagnostic, ...]
    """Errors, or warnings about features that the chosen proxy does not support."""


def choose(loaded: Loaded, kind: str | None) -> ProxyChoice:
    """Choose a proxy; `kind` restricts the choice. Raises NoProxyError."""
    programs = list(installed((kind,) if kind else LAUNCHERS.names))
    if not programs:
        raise NoProxyError(missing_proxy((kind,) if kind else LAUNCHERS.names))
    assessed = {item.kind: suitability(loaded, item.kind, item.version) for item in programs}
    suited = best(assessed.values())
    if suited is None:
        return ProxyChoice(None, tuple(item for each in assessed.values() for item in each.obstacles))
    program = next(item for item in programs if item.kind == suited.kind)
    return ProxyChoice(program, suited.losses)


def installed(kinds: Sequence[str]) -> Iterator[Program]:
    """Yield the installed programs of these kinds, except versions that are too old."""
    for kind in kinds:
        binary = find_binary(target(kind))
        if binary is None:
            continue
        try:
            version = version_of(binary)
        except MissingBinaryError:
            continue
        if not version or version[:2] >= target(kind).versions[0][:2]:
            yield Program(kind, binary, version)


def missing_proxy(kinds: Sequence[str]) -> str:
    """Return the message that none of these kinds is installed, with a command to install each."""
    lines = [f"  {target(kind).title:<8} {target(kind).install_hint}" for kind in kinds]
    oldest = ", ".join(f"{target(kind).title} {version_text(target(kind).versions[0][:2])}" for kind in kinds)
    missing = "proxy" if len(kinds) > 1 else target(kinds[0]).title
    return "\n".join([f"no {missing} is installed on this machine ({oldest} or later):", *lines])


@dataclass(frozen=True, slots=True)
class Suitability:
    """Describes how well a kind of proxy suits a fleet."""

    kind: str
    obstacles: tuple[Diagnostic, ...]
    """Errors: reasons why this proxy would not serve the fleet's clients."""
    losses: tuple[Diagnostic, ...]
    """Warnings: features that the proxy does not support, except the obstacles."""

    @property
    def summary(self) -> str:
        """Return a phrase that lists unsupported features, or states that the proxy supports all features."""
        if self.obstacles:
            return f"is not suitable: {self.obstacles[0].message}"
        if not self.losses:
            return "supports the whole fleet"
        codes = ", ".join(sorted({item.code for item in self.losses}))
        return f"supports everything in the fleet except the settings in {codes} (`lbctl rule CODE`)"


def suitability(loaded: Loaded, kind: str, version: tuple[int, ...] = ()) -> Suitability:
    """Assess this kind of proxy in `version`, or in its oldest supported version."""
    chosen = target(kind)
    proxy = unnamed(loaded.compiled.topology, kind, version or chosen.versions[0])
    part = view(Snapshot(loaded.compiled.topology, secrets=loaded.secrets), proxy)
    assessment = assess(chosen, proxy.version, part, loaded.compiled.sources)
    provided = done_by_control_plane_for(kind)
    losses = [item for item in assessment.diagnostics if item.code not in provided]
    closing = _closing(assessment, losses)
    obstacles = (*_header_only(loaded, part, kind), *(_as_obstacle(item) for item in closing))
    return Suitability(kind, obstacles, tuple(item for item in losses if item not in closing))


def best(assessed: Iterable[Suitability]) -> Suitability | None:
    """Return the proxy without obstacles that has the fewest kinds of losses (the first one in a tie), or None."""
    usable = [item for item in assessed if not item.obstacles]
    return min(usable, key=lambda item: len({loss.code for loss in item.losses}), default=None)


def _closing(assessment: Assessment, losses: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the losses that make routes return 503 on this proxy."""
    if not any(assessment.closed.values()) and not assessment.ways_around:
        return []
    return [item for item in losses if item.code in _PROTECTING]


def _as_obstacle(loss: Diagnostic) -> Diagnostic:
    return Diagnostic(loss.code, loss.message, loss.position, loss.path, loss.hint)


def _header_only(loaded: Loaded, part: View, kind: str) -> Iterable[Diagnostic]:
    """Report that the proxy reads models only from the `x-model` header, if any route matches on models."""
    if target(kind).reads_bodies:
        return
    routes = sorted({rule.route for listener in part.listeners for rule in listener.rules if rule.models})
    if routes:
        title, path = target(kind).title, ("routes", routes[0], "match", "model")
        message = (
            f"{title} reads the model only from the x-model header, but OpenAI clients send it in the body: "
            f"{'the route' if len(routes) == 1 else 'none of the routes'} {', '.join(routes)} would "
            f"{'not ' if len(routes) == 1 else ''}get their requests"
        )
        diagnostic = Diagnostic(UNSUITABLE, message, path=path, hint="use a proxy that reads bodies: envoy or haproxy")
        yield loaded.compiled.sources.with_position(diagnostic)
