"""Route priorities on proxies that support them only in the picker's queues."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID


def without_queue(view: View, title: str) -> Iterator[Diagnostic]:
    """Yield a warning for each route whose priority has no effect in at least one of its pools.

    `title`: the proxy's name.
    """
    for route in view.routes.values():
        if route.queue_priority == "normal" or not isinstance(route.action, Forward):
            continue
        pools = [name for name in route.action.pools if not _has_queue(view.pools[name])]
        if pools:
            yield Diagnostic(
                BY_ID["route.queue_priority"].code,
                f"{title} supports priorities only in pools with `queue`: the priority has no effect in "
                f"{'pool' if len(pools) == 1 else 'pools'} {', '.join(pools)}",
                path=("routes", route.name, "queue_priority"),
                hint="set `queue` and `balance: {algorithm: pick}`, or use HAProxy",
                severity="warning",
            )


def _has_queue(pool: Pool) -> bool:
    return pool.balance.pick is not None and pool.balance.pick.queue is not None
