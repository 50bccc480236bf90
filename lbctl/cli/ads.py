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
    node: str
    region: str
    zone: str
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
        def called(**given: Any) -> int:
            return function(ads=_ads({name: given.pop(name) for name in _FLAGS}, patience), **given)

        called.__doc__ = function.__doc__
        called.__dict__.update(function.__dict__)
        for each in reversed(settings):
            called = each(called)
        return called

    return add


def address_of(flag: str, text: str) -> Address:
    """Parse the address that an option gives. Raises click.UsageError."""
    try:
        found = parse_address(text)
    except QuantityError as error:
        raise click.UsageError(f"{flag}: {error}" + (f" ({error.hint})" if error.hint else "")) from None
    return Address(found.host, found.port, found.path)


def _ads(given: Mapping[str, str | None], patience: float) -> Ads:
    if bool(given["tls_cert"]) != bool(given["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if given["tls_cert"] and not given["tls_ca"]:
        raise click.UsageError("--tls-cert needs --tls-ca: a control plane that nobody has checked may be anybody")
    ca, certificate, key = (os.path.abspath(name) if (name := given[flag]) else "" for flag in _FLAGS[-3:])  # noqa: PTH100 -- a str
    return Ads(
        xds=address_of("--xds", given["xds"] or ("" if ca else _own_socket(patience)) or USUAL),
        node=_word("--node", given["node"]) or socket.gethostname(),
        region=_word("--region", given["region"]),
        zone=_word("--zone", given["zone"]),
        ca=ca,
        certificate=certificate,
        key=key,
        chosen=bool(given["xds"]),
    )


def _own_socket(patience: float) -> str:
    """`unix:PATH` of the `serve` whose API answers on this machine, if this user can connect to it; else empty.

    One that is just starting is waited for. A socket of somebody else's would make the proxy theirs, so it must be this
    user's own; root takes anybody's."""
    from lbctl.cli.api_client import DEFAULT_SERVER, is_on_loopback

    url = os.environ.get("LBCTL_SERVER") or DEFAULT_SERVER
    end = time.monotonic() + patience
    path = _socket_of(url) if is_on_loopback(url) else ""
    while path is None and time.monotonic() < end:
        time.sleep(_PAUSE)
        path = _socket_of(url)
    try:
        seen = Path(path).stat() if path else None
    except OSError:
        return ""
    mine = seen is not None and stat.S_ISSOCK(seen.st_mode) and os.geteuid() in (0, seen.st_uid)
    return f"unix:{path}" if mine else ""


def _socket_of(url: str) -> str | None:
    """Return the socket of that `serve`, empty if it has none, or None if it does not answer yet."""
    from lbctl.cli.api_client import Server

    try:
        status = Server(url, None, None).get_object("/api/v1/status")
        path = (status.get("listens") or {}).get("xds_socket")
    except (click.ClickException, AttributeError):
        return None
    return str(path or "") if path or status.get("ready") else None


def _word(flag: str, text: str | None) -> str:
    if text and not text.isprintable():
        raise click.UsageError(f"{flag}: {text!r} has characters that cannot be printed")
    return text or ""
