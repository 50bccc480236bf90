"""Options for commands that connect to a control plane, with its address and the node's identity and certificate."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lbctl.base import ports
from lbctl.base.quantities import QuantityError, parse_address
from lbctl.cli.options import options_of
from lbctl.ir.address import Address

if TYPE_CHECKING:
    from lbctl.api.any_version import AnyVersionListens
    from lbctl.api.client import ServeClient

USUAL = f"127.0.0.1:{ports.XDS}"
"""Default xDS address of `serve`."""
_PAUSE = 0.1
_FLAGS = ("xds", "node", "region", "zone", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class Ads:
    """Values of the options used to connect to a control plane.

    `ca`, `certificate` and `key` are absolute paths, or empty if not given; TLS requires `ca`. `problem` is the reason
    why a running `serve`'s socket cannot be used, or an empty string if it is used or not needed.
    """

    xds: Address
    """Address of the control plane."""
    node: str
    """Node ID to send."""
    region: str
    """Region to send, which may be empty."""
    zone: str
    """Zone to send, which may be empty."""
    ca: str
    certificate: str
    key: str
    problem: str


def ads_options(*, patience: float = 0.0) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Pass the options to the command as the `ads` argument. Wait up to `patience` seconds for `serve` to start."""
    from lbctl.cli.server_options import server_options

    option = options_of("xds")
    settings: list[Callable[[Callable[..., int]], Callable[..., int]]] = [
        options_of("")(
            "--xds",
            metavar="HOST:PORT",
            help="Address of the control plane, or unix:PATH (default: the socket of serve on this machine, "
            f"or {USUAL}).",
        ),
        option("--node", metavar="ID", help="Node ID (default: host name of this machine)."),
        option("--region", metavar="NAME", help="Region of the node."),
        option("--zone", metavar="NAME", help="Zone of the node."),
        option("--tls-ca", metavar="FILE", help="CA bundle to verify the control plane's certificate. Enables TLS."),
        option("--tls-cert", metavar="FILE", help="Client certificate of the node."),
        option("--tls-key", metavar="FILE", help="Private key of the client certificate."),
        options_of("")(
            "--server-ca", metavar="FILE", help="CA bundle to verify the certificate of --server (default: system CAs)."
        ),
    ]

    def add(function: Callable[..., int]) -> Callable[..., int]:
        def wrapper(remote: ServeClient, server_ca: str | None, **given: Any) -> int:
            running = _Running(replace(remote, ca=server_ca), patience)
            return function(ads=_ads({name: given.pop(name) for name in _FLAGS}, running), **given)

        wrapper.__doc__ = function.__doc__
        wrapper.__dict__.update(function.__dict__)
        for add_option in reversed(settings):
            wrapper = add_option(wrapper)
        return server_options(tls=False)(wrapper)

    return add


def address_of(flag: str, text: str) -> Address:
    """Parse an address from an option. Raises click.UsageError."""
    try:
        endpoint = parse_address(text)
    except QuantityError as error:
        raise click.UsageError(f"{flag}: {error}" + (f" ({error.hint})" if error.hint else "")) from None
    return Address(endpoint.host, endpoint.port, endpoint.path)


def _ads(values: Mapping[str, str | None], running: _Running) -> Ads:
    if bool(values["tls_cert"]) != bool(values["tls_key"]):
        raise click.UsageError("set both --tls-cert and --tls-key")
    if values["tls_cert"] and not values["tls_ca"]:
        raise click.UsageError("--tls-cert requires --tls-ca: without it, the control plane is not verified")
    ca, certificate, key = (os.path.abspath(name) if (name := values[flag]) else "" for flag in _FLAGS[-3:])  # noqa: PTH100 -- a str
    given = "" if running.is_nearer_than_xds else values["xds"] or ""
    text, problem = (given or USUAL, "") if given or ca else running.address()
    return Ads(
        xds=address_of("--xds", text),
        node=_printable("--node", values["node"]) or socket.gethostname(),
        region=_printable("--region", values["region"]),
        zone=_printable("--zone", values["zone"]),
        ca=ca,
        certificate=certificate,
        key=key,
        problem=problem,
    )


@dataclass(frozen=True, slots=True)
class _Running:
    """A `serve` process that is queried for its xDS address.

    `patience` is the number of seconds it may take to start.
    """

    server: ServeClient
    patience: float

    @property
    def is_nearer_than_xds(self) -> bool:
        """Whether --server or --fleet takes precedence over --xds."""
        from lbctl.cli.server_options import option_precedence

        context = click.get_current_context()
        return option_precedence(context, "server") > option_precedence(context, "xds")

    def address(self) -> tuple[str, str]:
        """Return the `serve` socket as `unix:PATH`, or a TCP address and the reason why the socket is not used.

        The TCP address is the specified `serve`'s address, or the default. The socket must belong to this user, because
        its owner can control the proxy. Root accepts any socket. Raises ApiError or ClickException if the `serve`
        specified on the command line does not respond or runs on another machine.
        """
        from lbctl.api.client import ApiError, is_on_loopback

        is_named = self.is_nearer_than_xds and _is_on_command_line("server")
        if not is_on_loopback(self.server.url):
            problem = f"{self.server.url} is on a different machine, so its socket cannot be used here"
            if is_named:
                raise click.UsageError(f"--server: {problem} (use --xds HOST:PORT)")
            return USUAL, problem
        try:
            listens = self._await_listens()
        except (ApiError, click.ClickException):
            if is_named:
                raise
            hint = "if control.api.bind is not the default, use --server or --fleet"
            return USUAL, f"serve is not responding at {self.server.url} ({hint})"
        if (path := listens.xds_socket or "") and _is_trusted(path):
            return f"unix:{path}", ""
        tcp = (is_named and listens.xds) or USUAL
        problem = f"serve at {self.server.url} has no socket that this user can connect to"
        return USUAL if tcp.startswith("unix:") else tcp, problem

    def _await_listens(self) -> AnyVersionListens:
        """Wait until `serve` is listening, and return its addresses. Raises ApiError or ClickException on timeout."""
        from lbctl.api.client import ApiError

        deadline, waits = time.monotonic() + self.patience, False
        while True:
            try:
                return self._listens()
            except (ApiError, click.ClickException):
                if time.monotonic() >= deadline:
                    raise
            if not waits:
                click.echo(f"lbctl: waiting up to {self.patience:g} s for serve at {self.server.url}", err=True)
            waits = True
            time.sleep(_PAUSE)

    def _listens(self) -> AnyVersionListens:
        """Return the addresses that `serve` currently uses.

        Raises ApiError if it does not respond, and ClickException if it is not listening yet.
        """
        from lbctl.api.any_version import AnyVersionStatus

        status = self.server.get("/api/v1/status", AnyVersionStatus)
        if status.listens is None or not (status.listens.xds_socket or status.ready):
            raise click.ClickException(f"serve at {self.server.url} is not ready: {status.waiting}")
        return status.listens


def _is_on_command_line(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def _is_trusted(path: str) -> bool:
    """Return whether the path is a socket that belongs to this user. Root trusts all users' sockets."""
    try:
        status = Path(path).stat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and os.geteuid() in (0, status.st_uid)


def _printable(flag: str, text: str | None) -> str:
    if text and not text.isprintable():
        raise click.UsageError(f"{flag}: {text!r} contains unprintable characters")
    return text or ""
