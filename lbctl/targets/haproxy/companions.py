"""The files beside a haproxy.cfg whose names do not depend on its own."""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.targets.haproxy import pick, slots


def companions(proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:
    """Return the script of picks and the map of server slots, where the proxy has them."""
    files = {
        pick.SCRIPT: any(pool.balance.pick is not None for pool in pools),
        slots.MAP: any(slots.count(proxy, pool) for pool in pools),
    }
    return [name for name, exists in files.items() if exists]
