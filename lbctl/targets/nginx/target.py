"""nginx as a target. The modules for rendering are imported only when something is rendered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.nginx import check, installation
from lbctl.targets.nginx.capabilities import CAPABILITIES
from lbctl.targets.target import Bundle, Capability, Complaint, Shedding, Version


class Nginx:
    """The target for nginx. It has no state, and `render` builds everything from scratch."""

    kind = "nginx"
    title = "nginx"
    binary = "nginx"
    install_hint = "apt-get install nginx"
    wheel = ""
    forms: tuple[str, ...] = ("yaml",)
    served_by_xds = False
    counted_with = ("config", "reload")
    done_by_control_plane = frozenset(
        {
            "pool.slow_start",
            "pool.health.http",
            "pool.health.http.body",
            "pool.health.grpc",
            "pool.health.tcp",
            "pool.health.agent",
        }
    )
    compares_hashes = False
    retries_grpc = False
    prefers_idle_replicas = False
    reads_bodies = False
    versions: tuple[Version, ...] = (
        (1, 22), (1, 25, 1), (1, 27, 3), (1, 29, 4), (1, 29, 6), (1, 31),
    )  # fmt: skip
    own_line_places: Mapping[str, OwnLinesPlace] = {
        "http": OwnLinesPlace(), "server": OwnLinesPlace("listeners"), "location": OwnLinesPlace("routes")
    }  # fmt: skip
    fragment_example = "/etc/nginx/conf.d/lbctl.conf"
    service_config = "/etc/nginx/nginx.conf"

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Map each feature ID to nginx's support for the feature."""
        return CAPABILITIES

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:  # noqa: ARG002 -- for other kinds
        """Return `none`, because nginx does not know the number of available replicas."""
        return "none"

    def readmission(self, pool: Pool) -> str:  # noqa: ARG002 -- for other kinds
        """Return an empty string, because nginx does not report ejections."""
        return ""

    def unfit_for_service(self, view: View) -> str:
        """Return a problem if an access log is on standard output, which is a socket under systemd."""
        if not set(installation.STREAMS).intersection(self.log_files(view)):
            return ""
        return "nginx cannot open the access log /dev/stdout, which is a socket under systemd"

    def log_files(self, view: View) -> Sequence[str]:
        """Return the paths of the access logs, which nginx opens by path."""
        return installation.log_files(view)

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because the files next to nginx's configuration have names derived from its name."""
        return ()

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- nginx.conf has one form
        """Render a view to nginx.conf and the files that it includes."""
        from lbctl.targets.nginx.render import render

        return render(view)

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `render` for this view without rendering files."""
        from lbctl.targets.nginx.render import diagnostics

        return diagnostics(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """Return nginx's own weights for the replicas of `pool`, given their `weights`, in the same order."""
        from lbctl.targets.nginx.pool import nginx_weights

        return nginx_weights(pool, weights)

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:  # noqa: ARG002 -- for other kinds
        """Return the pool's algorithm; for nginx, it does not depend on the other pools of a split."""
        return view.pools[pool].balance.name

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors that make lbctl reject a fleet with this proxy."""
        from lbctl.targets.nginx.own_lines import refusals

        return refusals(view)

    def served(self, view: View) -> View:
        """Return the view itself, because this proxy serves all of it."""
        return view

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:  # noqa: ARG002 -- for Kubernetes objects
        """Return an empty list, because this proxy runs as a process."""
        return ()

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        """Return the command that checks the file `main`. nginx may write below `prefix`."""
        return check.command(binary, prefix, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Return the errors in the checker's output."""
        return check.complaints(output, bundle)


TARGET = Nginx()
