"""Whether a rendered text holds credentials: headers of requests that a fleet sets or matches may be such."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.ir.listeners import Rule
from lbctl.ir.secrets import may_hold_credential
from lbctl.ir.snapshot import View


def in_headers(view: View, rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules, or its route, names the value of a header that lets somebody in."""
    return any(
        may_hold_credential(name)
        for rule in rules
        for name, _ in (*rule.headers, *view.routes[rule.route].request_headers.set)
    )


def in_text(view: View) -> bool:
    """Return whether the text of all listeners holds one, so that its owner alone may read it."""
    return any(in_headers(view, listener.rules) for listener in view.listeners)
