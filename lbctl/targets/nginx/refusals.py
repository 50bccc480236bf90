"""What makes an nginx of the fleet unacceptable: own lines that would leave their place."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.snapshot import View
from lbctl.targets.nginx.own_lines import misplaced
from lbctl.targets.own_lines import refusal


def refusals(view: View) -> Iterator[Diagnostic]:
    """Yield the errors for which a fleet with this proxy is not accepted."""
    proxy = view.proxy
    for item in proxy.include:
        yield from (refusal(proxy, item, each) for each in misplaced(item.text))
