"""From which addresses clients may use a route: its own lists of networks, each in the place of the listener's."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Route


@dataclass(frozen=True, slots=True)
class Access:
    """The networks of clients; `deny` comes before `allow`."""

    allow: tuple[str, ...] | None = None
    """The networks whose clients are served; None: every network."""
    deny: tuple[str, ...] = ()
    """The networks whose clients are refused."""

    @property
    def is_limited(self) -> bool:
        """Whether some client is refused."""
        return self.allow is not None or bool(self.deny)

    def of(self, route: Route) -> Access:
        """Return what holds for a route on a listener with these networks."""
        return Access(
            self.allow if route.allow_from is None else route.allow_from,
            self.deny if route.deny_from is None else route.deny_from,
        )


EVERYBODY = Access()
"""No client is refused."""


def access(listener: Listener) -> Access:
    """Return the networks of a listener, which hold for its routes without lists of their own."""
    return Access(listener.allow_from, listener.deny_from)
