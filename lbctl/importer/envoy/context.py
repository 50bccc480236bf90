"""What the parts of the Envoy importer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import Draft
from lbctl.importer.envoy.view import ConfigView
from lbctl.importer.ledger import content
from lbctl.importer.values import duration


@dataclass(slots=True)
class EnvoyImport:
    """One import of an Envoy configuration."""

    draft: Draft
    clusters: dict[str, ConfigView] = field(default_factory=dict)
    """The name of a cluster → the cluster."""
    endpoints: dict[str, ConfigView] = field(default_factory=dict)
    """The name of a cluster → its endpoints, where a dump has them by themselves."""
    route_configs: dict[str, ConfigView] = field(default_factory=dict)
    """The name of a route configuration → it, where a dump has them by themselves."""
    pools: dict[tuple[str, tuple[str, ...]], Path] = field(default_factory=dict)
    """The name of a cluster, and the secrets that it is asked with → its pool."""

    managers: int = 0
    """How many listeners the configuration has."""
    filters_of_routes: set[str] = field(default_factory=set)
    """The names of filters about which a route says something of its own."""
    services: set[str] = field(default_factory=set)
    """The names of clusters that filters ask, and no route."""

    def put(self, path: Path, value: object, *views: ConfigView) -> None:
        """Set a value that came from the views, with all that they contain."""
        self.draft.put(path, value, *(item for view in views for item in view.all))

    def imply(self, reason: str, *views: ConfigView) -> None:
        """Record that lbctl does what the views say anyway."""
        self.draft.ledger.imply(reason, *(item for view in views for item in view.all))

    def omit(self, view: ConfigView, reason: str, place: Path) -> None:
        """Keep a value as a comment, with all that it contains."""
        self.draft.ledger.omit(view.statement, reason, place, content(view.statement))

    def time(self, path: Path, view: ConfigView) -> None:
        """Set a duration."""
        value = view.milliseconds
        if view and value:
            self.put(path, duration(value), view)


Handler = Callable[[EnvoyImport, Path, ConfigView], None]
"""Carries one field into an object of the fleet."""


def handle(context: EnvoyImport, path: Path, view: ConfigView, handlers: dict[str, Handler], *names: str) -> None:
    """Give each field of the view to its handler; `names` are fields that only name or select."""
    for name, child in view.fields():
        if name in handlers:
            handlers[name](context, path, child)
        elif name in names or name == "@type":
            context.imply("it only names or selects", child)
