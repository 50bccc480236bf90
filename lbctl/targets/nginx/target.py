"""nginx as a target. What renders is imported when something is rendered, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.snapshot import View
from lbctl.targets.nginx import check
from lbctl.targets.nginx.capabilities import CAPABILITIES
from lbctl.targets.target import Bundle, Capability, Complaint, Version


class Nginx:
    """Stateless: `render` builds everything anew."""

    kind = "nginx"
    binary = "nginx"
    versions: tuple[Version, ...] = (
        (1, 22), (1, 25, 1), (1, 27, 3), (1, 29, 4), (1, 29, 6), (1, 31),
    )  # fmt: skip

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return CAPABILITIES

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- nginx.conf has one form
        from lbctl.targets.nginx.render import render

        return render(view)

    def remarks(self, view: View) -> tuple[Diagnostic, ...]:
        from lbctl.targets.nginx.render import remarks

        return remarks(view)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        return check.command(binary, prefix, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        return check.complaints(output, bundle)


TARGET = Nginx()
