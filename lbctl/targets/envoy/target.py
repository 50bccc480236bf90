"""Envoy as a target. Its messages are imported when something is rendered, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.snapshot import View
from lbctl.targets.envoy.capabilities import CAPABILITIES
from lbctl.targets.envoy.check import check_command, complaints
from lbctl.targets.target import Bundle, Capability, Complaint, Version


class EnvoyTarget:
    kind = "envoy"
    binary = "envoy"
    versions: Sequence[Version] = ((1, 40),)
    capabilities: Mapping[str, Capability] = CAPABILITIES

    def render(self, view: View, form: str = "yaml") -> Bundle:
        from lbctl.targets.envoy.render import render

        return render(view, form)

    def remarks(self, view: View) -> tuple[Diagnostic, ...]:
        from lbctl.targets.envoy.remarks import remarks

        return remarks(view)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        return check_command(binary, prefix, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        return complaints(output, bundle)
