"""What makes a HAProxy of the fleet unacceptable: own lines that would leave their section, and what fragments lack.

A fragment has no `global` section: settings of the process are the host's. Where a route relies on one, the fleet is
refused, since HAProxy would serve it without.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import keys, listener
from lbctl.targets.haproxy.own_lines import misplaced
from lbctl.targets.own_lines import refusal

_WHOLE = "form: whole, as a separate HAProxy"


def refusals(view: View) -> Iterator[Diagnostic]:
    """Yield the errors for which a fleet with this proxy is not accepted."""
    proxy = view.proxy
    for item in proxy.include:
        yield from (refusal(proxy, item, each) for each in misplaced(item.place, item.text))
    if proxy.is_fragment:
        yield from _lacking(view, ("proxies", proxy.name, "form"))


def _lacking(view: View, path: Path) -> Iterator[Diagnostic]:
    """Yield what this fragment would need of the `global` section."""
    size = listener.buffer(view)
    if size != listener.USUAL_BUFFER:
        message = (
            f"this fleet reads bodies or answers long ones, which needs `tune.bufsize {size}` in the host's `global`: "
            "with less, HAProxy would read the beginning of a body alone and route it wrongly"
        )
        yield Diagnostic("LB135", message, path=path, hint=_WHOLE)
    if any(pool.balance.pick for pool in view.pools.values()):
        message = "picked replicas need `lua-load-per-thread` in `global`, which a fragment does not have"
        yield Diagnostic("LB135", message, path=path, hint=f"{_WHOLE}, or another algorithm")
    if keys.needs_short_names(view):
        message = "a key x.key beside x.crt needs `ssl-load-extra-del-ext` in `global`, which a fragment does not have"
        yield Diagnostic("LB135", message, path=path, hint="name the certificate x.pem and its key x.pem.key")
