"""What drives one proxy of this machine, and how it stands, in the words of the API's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lbctl.ir.proxies import Proxy
from lbctl.serve.publisher import Served

State = Literal["SYNCED", "WAITING", "FAILING", "NOT DRIVEN"]


@dataclass(frozen=True, slots=True)
class Standing:
    """`version`: of the snapshot that the proxy has; `words`: what stands in the way; `reloads`: how many lbctl has
    caused; `leaving`: replicas that are to go and still have requests; `at`: of the last try, in seconds since the
    epoch."""

    state: State = "WAITING"
    version: str = ""
    words: str = ""
    reloads: int = 0
    leaving: int = 0
    at: float = 0.0


class Hand(Protocol):
    """Of one proxy. `want` is what it should have from now on; `run` sees to it until it is cancelled."""

    @property
    def proxy(self) -> Proxy: ...

    @property
    def standing(self) -> Standing: ...

    def want(self, served: Served) -> None: ...

    async def run(self) -> None: ...


def row(proxy: Proxy, standing: Standing, since: float) -> dict[str, Any]:
    """With the keys that an Envoy's row has."""
    return {
        "node": proxy.name,
        "proxy": proxy.name,
        "kind": proxy.kind,
        "connected": standing.state in ("SYNCED", "WAITING"),
        "since": standing.at or since,
        "state": standing.state,
        "reason": standing.words,
        "version": standing.version,
        "last_good": standing.version,
        "reloads": standing.reloads,
        "leaving": standing.leaving,
        "types": [],
        "nacks": [],
    }
