"""Options of the commands that connect to a control plane: its address, the node's identity and its certificate."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lbctl.base import ports
from lbctl.base.quantities import QuantityError, parse_address
from lbctl.cli.options import options_of
from lbctl.ir.address import Address

USUAL = f"127.0.0.1:{ports.XDS}"
"""The default address at which `serve` listens for proxies."""
_PAUSE = 0.1
_FLAGS = ("xds", "node", "region", "zone", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class Ads:
    """The values of the options.

    `ca`, `certificate`, `key`: absolute paths, empty if not given; TLS requires `ca`. `chosen`: whether `--xds` was
    given.
    """

    xds: Address
    """The address of the control plane."""
    node: str
    """The node id to send."""
    region: str
    """The region to send; empty: none."""
    zone: str
    """The zone to send; empty: none."""
    ca: str
    certificate: str
    key: str
    chosen: bool


def ads_options(*, patience: float = 0.0) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Pass the options to the command as the argument `ads`; wait `patience` seconds for a `serve` that is starting."""
    option = options_of("xds")
    settings: list[Callable[[Callable[..., int]], Callable[..., int]]] = [
        options_of("")(
            "--xds",
            metavar="HOST:PORT",
            help=f"The control plane, or unix:PATH; default: the socket of the serve that runs here, else {USUAL}.",
        ),
        option("--node", metavar="ID", help="The node's id; default: this machine's name."),
        option("--region", metavar="R", help="The node's region."),
        option("--zone", metavar="Z", help="The node's zone."),
        option("--tls-ca", metavar="F", help="TLS: who signs the control plane's certificate."),
        option("--tls-cert", metavar="F", help="The certificate that the node shows."),
        option("--tls-key", metavar="F", help="Its key."),
    ]

    def add(function: Callable[..., int]) -> Callable[..., int]:
        def wrapper(**given: Any) -> int:
            return function(ads=_ads({name: given.pop(name) for name in _FLAGS}, patience), **given)

        wrapper.__doc__ = function.__doc__
        wrapper.__dict__.update(function.__dict__)
        for add_option in reversed(settings):
            wrapper = add_option(wrapper)
        return wrapper

    return add


def address_of(flag: str, text: str) -> Address:
    """Parse the address that an option gives. Raises click.UsageError."""
    try:
        endpoint = parse_address(text)
    except QuantityError as error:
        raise click.UsageError(f"{flag}: {error}" + (f" ({error.hint})" if error.hint else "")) from None
    return Address(endpoint.host, endpoint.port, endpoint.path)


def _ads(values: Mapping[str, str | None], patience: float) -> Ads:
    if bool(values["tls_cert"]) != bool(values["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if values["tls_cert"] and not values["tls_ca"]:
        raise click.UsageError("--tls-cert needs --tls-ca: a control plane that nobody has checked may be anybody")
    ca, certificate, key = (os.path.abspath(name) if (name := values[flag]) else "" for flag in _FLAGS[-3:])  # noqa: PTH100 -- a str
    return Ads(
        xds=address_of("--xds", values["xds"] or ("" if ca else _own_socket(patience)) or USUAL),
        node=_printable("--node", values["node"]) or socket.gethostname(),
        region=_printable("--region", values["region"]),
        zone=_printable("--zone", values["zone"]),
        ca=ca,
        certificate=certificate,
        key=key,
        chosen=bool(values["xds"]),
    )


def _own_socket(patience: float) -> str:
    """Return `unix:PATH` of the `serve` whose API answers on this machine, if this user can use it; else empty.

    It waits for one that is just starting. A socket of another user would put the proxy under that user's control, so
    it must belong to this user; root accepts any.
    """
    from lbctl.cli.api_client import DEFAULT_SERVER, is_on_loopback

    url = os.environ.get("LBCTL_SERVER") or DEFAULT_SERVER
    deadline = time.monotonic() + patience
    path = _socket_of(url) if is_on_loopback(url) else ""
    while path is None and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        path = _socket_of(url)
    try:
        status = Path(path).stat() if path else None
    except OSError:
        return ""
    trusted = status is not None and stat.S_ISSOCK(status.st_mode) and os.geteuid() in (0, status.st_uid)
    return f"unix:{path}" if trusted else ""


def _socket_of(url: str) -> str | None:
    """Return the socket of that `serve`, empty if it has none, or None if it does not answer yet."""
    from lbctl.cli.api_client import Server

    try:
        status = Server(url, None, None).get_object("/api/v1/status")
        path = (status.get("listens") or {}).get("xds_socket")
    except (click.ClickException, AttributeError):
        return None
    return str(path or "") if path or status.get("ready") else None


def _printable(flag: str, text: str | None) -> str:
    if text and not text.isprintable():
        raise click.UsageError(f"{flag}: {text!r} has characters that cannot be printed")
    return text or ""
