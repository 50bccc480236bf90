"""Network addresses of listeners, replicas and APIs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbctl.base.hosts import from_here, is_loopback


@dataclass(frozen=True, slots=True)
class Address:
    """`host` and `port`, or the `path` of a Unix socket."""

    host: str = ""
    """Host name or IP address. IPv6 addresses have no brackets."""
    port: int = 0
    path: str = ""

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can connect, because the address is a Unix socket or a loopback address."""
        return bool(self.path) or is_loopback(self.host)

    @property
    def from_here(self) -> Address:
        """Return the address that this machine uses to reach a listener.

        It is not possible to connect to the unspecified addresses (0.0.0.0, ::).
        """
        return replace(self, host=from_here(self.host))

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
