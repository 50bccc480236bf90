"""`lbctl bootstrap`, which prints the bootstrap configuration for an Envoy that is managed by `lbctl serve`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from lbctl.apply.files import write_bundle
from lbctl.base.errors import reason_of
from lbctl.base.hosts import is_ip
from lbctl.base.paths import is_file
from lbctl.cli.ads import Ads, address_of, ads_options
from lbctl.cli.command import Command
from lbctl.cli.options import options_of
from lbctl.ir.address import Address
from lbctl.targets.target import Bundle

if TYPE_CHECKING:
    from lbctl.ir.proxies import Proxy

option = options_of("bootstrap")
MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of a Unix socket path, in bytes."""
_CONNECT_TIMEOUT = 10.0
"""Maximum time, in seconds, for a starting `serve` to create its socket."""


@click.command(
    "bootstrap",
    cls=Command,
    examples="""
    lbctl bootstrap > envoy.yaml
    lbctl bootstrap --fleet fleet.yaml --node edge-1 -d /etc/envoy
    # With TLS:
    lbctl bootstrap --xds lbctl.example:18000 --tls-ca ca.pem \\
        --tls-cert edge.pem --tls-key edge.key -d /etc/envoy
    """,
)
@ads_options(patience=_CONNECT_TIMEOUT)
@option(
    "--standby",
    "standbys",
    metavar="HOST:PORT",
    multiple=True,
    help="Another control-plane member, used if the previous one does not respond (repeatable).",
)
@option(
    "--proxy-admin",
    metavar="HOST:PORT",
    help="Address of Envoy's admin interface, or unix:PATH. Default: `admin` of the node's entry in --fleet, or a "
    "Unix socket next to the bootstrap file if Envoy connects to a Unix socket.",
)
@option("-d", "--directory", metavar="DIR", help="Write the files to DIR, atomically.")
@option(
    "--proxy-metrics",
    metavar="HOST:PORT",
    help="Address at which Envoy exposes its metrics to Prometheus. Requires --proxy-admin.",
)
def command(
    ads: Ads, standbys: tuple[str, ...], proxy_admin: str | None, proxy_metrics: str | None, directory: str | None
) -> int:
    """Print a bootstrap configuration for Envoy.

    With this configuration, Envoy connects to a control plane over incremental (delta) ADS. With TLS, use -d: Envoy
    then watches the certificate files and loads renewed certificates. Without -d, Envoy reads the certificates only
    once.

    Without --xds and --tls-ca, Envoy connects to the Unix socket of the serve process on this machine. lbctl waits up
    to ten seconds for this process. If `control.api.bind` is not the default, add --fleet or --server. The exit code is
    4 if serve does not respond.

    Start Envoy with `envoy -c FILE --disable-hot-restart`, so that several Envoy processes can run on the same machine.
    """
    from lbctl.targets.envoy.bootstrap import Joining, bootstrap

    _check_files({"--tls-ca": ads.ca, "--tls-cert": ads.certificate, "--tls-key": ads.key})
    admin = address_of("--proxy-admin", proxy_admin) if proxy_admin else _default_admin(ads, directory)
    _warn_of_refusal(ads.node)
    metrics = address_of("--proxy-metrics", proxy_metrics) if proxy_metrics else None
    if metrics and not admin:
        raise click.UsageError(
            "--proxy-metrics requires --proxy-admin, because it exposes the admin interface's metrics"
        )
    if admin and not admin.on_loopback:
        hint = "use 127.0.0.1 or unix:PATH, and --proxy-metrics to expose metrics"
        raise click.UsageError(f"--proxy-admin: any client of {admin} could stop the proxy and read its keys ({hint})")
    if ads.ca and directory is None:
        click.echo(
            "lbctl: without -d DIR, Envoy reads its certificates only at startup: renewed certificates need a restart",
            err=True,
        )
    if ads.problem:
        click.echo(
            f"lbctl: {ads.problem}: the proxy will connect to {ads.xds}, where it receives no keys (LB527) and its "
            "load reports are ignored (create the bootstrap while serve is running, or use --xds unix:PATH)",
            err=True,
        )
    joining = Joining(
        xds=ads.xds,
        node=ads.node,
        region=ads.region,
        zone=ads.zone,
        admin=admin,
        metrics=metrics,
        ca=ads.ca,
        certificate=ads.certificate,
        key=ads.key,
        standbys=_standbys(ads.xds, standbys),
        directory=os.path.abspath(directory) if directory is not None else None,  # noqa: PTH100 -- a str
    )
    return _written(bootstrap(joining), directory)


def _default_admin(ads: Ads, directory: str | None) -> Address | None:
    """Return the default address of the admin interface, or None.

    `serve` reads Envoy's health-check results from this interface. Envoy does not start if it cannot create the socket,
    so a default exists only on the machine that runs `serve`, in a directory to which this user can write.
    """
    entry, _ = _entry_of(ads.node)
    named = entry.admin if entry is not None and entry.instances == 1 else None
    if named is not None or not ads.xds.path:
        return named
    place, name = (os.path.abspath(directory), "admin.sock") if directory else _beside(ads)  # noqa: PTH100 -- a str
    path = f"{place}/{name}"
    usable = directory is not None or os.access(place, os.W_OK)
    return Address(path=path) if usable and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES else None


def _beside(ads: Ads) -> tuple[str, str]:
    """Return the directory that contains the control plane's socket, and a socket name that is unique to this node."""
    digest = hashlib.sha256(ads.node.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return os.path.dirname(ads.xds.path), f"admin-{digest}.sock"  # noqa: PTH120 -- a str


def _warn_of_refusal(node: str) -> None:
    """Warn if `serve` will withhold all resources from this node, according to the fleet in --fleet."""
    _, refusal = _entry_of(node)
    if refusal:
        hint = '`nodes: ["edge-*"]` sets the nodes of an entry in `proxies`'
        click.echo(f"lbctl: {refusal}: serve will not send this node any resources ({hint})", err=True)


def _entry_of(node: str) -> tuple[Proxy | None, str]:
    """Return this node's entry in `proxies` in --fleet, and the reason if it has none.

    Without a valid fleet, the entry is None and the reason is empty.
    """
    fleet = click.get_current_context().params.get("fleet")
    if not fleet:
        return None, ""
    from lbctl.base.diagnostics import Diagnostics
    from lbctl.cli import fleet as fleets
    from lbctl.xds.protocol.nodes import RefusedNode, assign
    from lbctl.xds.protocol.wire import XdsNode

    loaded = fleets.load((fleet,), Diagnostics())
    if loaded is None:
        return None, ""
    entry = assign(loaded.compiled.topology, XdsNode(node), frozenset())
    if isinstance(entry, RefusedNode):
        return None, "" if entry.denied else entry.reason
    return entry, ""


def _standbys(first: Address, texts: tuple[str, ...]) -> tuple[Address, ...]:
    """Return the addresses. Envoy does not accept a combination of a Unix socket and a host name."""
    members = (first, *(address_of("--standby", text) for text in texts))
    named = [str(item) for item in members if item.host and not is_ip(item.host)]
    sockets = [str(item) for item in members if item.path]
    if named and sockets:
        raise click.UsageError(
            f"--standby: {sockets[0]} and {named[0]} cannot be combined (use the IP addresses of the members)"
        )
    return members[1:]


def _check_files(given: Mapping[str, str]) -> None:
    """Check that the files exist on this machine, because Envoy does not start if any of them is missing."""
    for flag, file in given.items():
        if file and not is_file(file):
            raise click.UsageError(f"{flag}: the file {file} does not exist")


def _written(bundle: Bundle, directory: str | None) -> int:
    if directory is None:
        click.echo(bundle.main.text, nl=False)
        return 0
    try:
        write_bundle(bundle, directory)
    except OSError as error:
        click.echo(f"lbctl: cannot write {error.filename or directory}: {reason_of(error)}", err=True)
        return 1
    return 0
