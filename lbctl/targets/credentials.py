"""Whether a rendered text holds credentials that the fleet itself contains (`ir.written_credentials`)."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.ir import written_credentials
from lbctl.ir.listeners import Rule
from lbctl.ir.snapshot import View


def in_rules(view: View, rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules, or its route, contains a credential."""
    return any(
        True
        for rule in rules
        for _ in (*written_credentials.of_rule(rule), *written_credentials.of_route(view.routes[rule.route]))
    )


def in_text(view: View) -> bool:
    """Return whether the text of all listeners and pools holds one, so that its owner alone may read it."""
    in_pools = any(True for pool in view.pools.values() for _ in written_credentials.of_pool(pool))
    return in_pools or any(in_rules(view, listener.rules) for listener in view.listeners)
