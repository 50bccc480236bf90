"""State shared by the parts of the Envoy importer."""

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
    """Clusters by name."""
    endpoints: dict[str, ConfigView] = field(default_factory=dict)
    """Endpoints by cluster name, if a dump lists them separately."""
    route_configs: dict[str, ConfigView] = field(default_factory=dict)
    """Route configurations by name, if a dump lists them separately."""
    pools: dict[tuple[str, tuple[str, ...]], Path] = field(default_factory=dict)
    """Maps a cluster's name and the secrets sent to it to the cluster's pool."""

    managers: int = 0
    """Number of listeners in the configuration."""
    filters_of_routes: set[str] = field(default_factory=set)
    """Names of filters that have their own settings for a route."""
    services: set[str] = field(default_factory=set)
    """Names of clusters that are called by filters but not used by any route."""

    def put(self, path: Path, value: object, *views: ConfigView) -> None:
        """Set a value that came from the views, including everything in them."""
        self.draft.put(path, value, *(item for view in views for item in view.all))

    def imply(self, reason: str, *views: ConfigView) -> None:
        """Record that lbctl implements this by default, without a key in the fleet."""
        self.draft.ledger.imply(reason, *(item for view in views for item in view.all))

    def omit(self, view: ConfigView, reason: str, place: Path) -> None:
        """Keep a value and everything in it as a comment."""
        self.draft.ledger.omit(view.statement, reason, place, content(view.statement))

    def time(self, path: Path, view: ConfigView) -> None:
        """Set a duration."""
        value = view.milliseconds
        if view and value:
            self.put(path, duration(value), view)


Handler = Callable[[EnvoyImport, Path, ConfigView], None]
"""Converts one field to keys of an object in the fleet."""


def handle(context: EnvoyImport, path: Path, view: ConfigView, handlers: dict[str, Handler], *names: str) -> None:
    """Pass each of the view's fields to its handler. `names` contains fields that only name or select something."""
    for name, child in view.fields():
        if name in handlers:
            handlers[name](context, path, child)
        elif name in names or name == "@type":
            context.imply("this field is only a name or a selector", child)
