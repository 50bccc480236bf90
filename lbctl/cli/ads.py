"""What the commands that speak of a control plane share: where it is, which node asks, and with which certificate."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from lbctl.base.quantities import QuantityError, parse_address
from lbctl.cli.options import options_of
from lbctl.ir.address import Address

_FLAGS = ("xds", "node", "region", "zone", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True)
class Ads:
    """The flags. `ca`, `certificate`, `key`: absolute paths, empty where not given; without `ca` there is no TLS."""

    xds: Address
    node: str
    region: str
    zone: str
    ca: str
    certificate: str
    key: str


def ads_options() -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The function gets the options as one argument, `ads`."""
    option = options_of("xds")
    settings: list[Callable[[Callable[..., int]], Callable[..., int]]] = [
        options_of("")(
            "--xds", metavar="HOST:PORT", default="127.0.0.1:18000", show_default=True, help="The control plane."
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
            return function(ads=_ads({name: given.pop(name) for name in _FLAGS}), **given)

        called.__doc__ = function.__doc__
        called.__dict__.update(function.__dict__)
        for each in reversed(settings):
            called = each(called)
        return called

    return add


def address_of(flag: str, text: str) -> Address:
    """Raises click.UsageError."""
    try:
        found = parse_address(text)
    except QuantityError as error:
        raise click.UsageError(f"{flag}: {error}" + (f" ({error.hint})" if error.hint else "")) from None
    return Address(found.host, found.port, found.path)


def _ads(given: Mapping[str, str | None]) -> Ads:
    if bool(given["tls_cert"]) != bool(given["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key go together")
    if given["tls_cert"] and not given["tls_ca"]:
        raise click.UsageError("--tls-cert needs --tls-ca: a control plane that nobody has checked may be anybody")
    ca, certificate, key = (os.path.abspath(name) if (name := given[flag]) else "" for flag in _FLAGS[-3:])  # noqa: PTH100 -- a str
    return Ads(
        xds=address_of("--xds", given["xds"] or ""),
        node=_word("--node", given["node"]) or socket.gethostname(),
        region=_word("--region", given["region"]),
        zone=_word("--zone", given["zone"]),
        ca=ca,
        certificate=certificate,
        key=key,
    )


def _word(flag: str, text: str | None) -> str:
    if text and not text.isprintable():
        raise click.UsageError(f"{flag}: {text!r} has characters that cannot be printed")
    return text or ""
